"""What `/metrics` shows: what the store says of the jobs, and what this process has counted if its metrics are on."""

from holdfast.app import Holdfast
from holdfast.runtime.telemetry.exposition import Exposition


def render(app: Holdfast) -> bytes:
    """Give an application's metrics in Prometheus' text format; the store is asked once in a while, not every time."""
    return Exposition(app.telemetry.totals).text()
