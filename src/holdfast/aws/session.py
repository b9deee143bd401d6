"""Clients of AWS's services: boto3's, made when first needed, in a region and at an endpoint."""

from typing import Any

from holdfast.domain.errors import BadInput

_PRETENDED = {"aws_access_key_id": "holdfast", "aws_secret_access_key": "holdfast"}


def client(service: str, region: str | None, endpoint: str | None) -> Any:
    """Make a client; an emulator on this machine needs neither region nor credentials."""
    try:
        import boto3  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]

        from holdfast.stores.dynamodb.address import Address
    except ModuleNotFoundError as error:
        msg = f"AWS needs {error.name}; install it with: pip install 'holdfast[aws]'."
        raise BadInput(msg) from error
    session = boto3.session.Session()
    config = Config(retries={"total_max_attempts": 4, "mode": "standard"}, connect_timeout=3, read_timeout=10)
    region = region or session.region_name
    pretended: dict[str, str] = {}
    if Address("", "", endpoint=endpoint).emulated:
        region = region or "us-east-1"
        if session.get_credentials() is None:
            pretended = _PRETENDED
    if not region:
        msg = "There is no AWS region; name it with --region, or in your AWS settings."
        raise BadInput(msg)
    return session.client(service, region_name=region, endpoint_url=endpoint, config=config, **pretended)
