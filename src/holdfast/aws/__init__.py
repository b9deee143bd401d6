"""Holdfast on AWS: functions for Lambda, and the state that `holdfast init aws` brings about.

boto3 is imported when AWS is first called, so that a cold start pays for nothing else.
"""

from holdfast.aws.functions import lambda_handler, sweep_handler

__all__ = ["lambda_handler", "sweep_handler"]
