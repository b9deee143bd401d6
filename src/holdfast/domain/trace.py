"""The trace that a job belongs to.

A job's `trace_id` is whatever its enqueuer knows the trace by. Where tracing is on, it is a W3C `traceparent`, which
names the trace and the span that the job was enqueued in; whoever runs the job goes on from there. Wherever the trace
is only told (logs, events, Sentry), it is told by its id alone.
"""

import re

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def is_traceparent(text: str | None) -> bool:
    """Tell whether a job's trace names a span to go on from."""
    return text is not None and _TRACEPARENT.fullmatch(text) is not None


def told(text: str | None) -> str | None:
    """Give the id that a job's trace is told by."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    return text if found is None else found[1]
