"""Sinks: where events go. What an application declares, how an event is shown to it, and the ways to hand it over."""

from holdfast.client.sinks.declaration import Sink, Sinks
from holdfast.client.sinks.lines import JsonLines
from holdfast.client.sinks.signature import verify_webhook
from holdfast.client.sinks.webhook import Webhook

__all__ = ["JsonLines", "Sink", "Sinks", "Webhook", "verify_webhook"]
