"""Logs: what a record about a job carries, and how records are written.

Everything Holdfast logs goes to the logger `holdfast` or one below it. A record about a job has its `job_id`, `kind`,
`attempt`, `tenant` and `trace_id` as attributes, for whatever formatter an application has; its text never holds a
payload or the text of an exception. Both formatters here pass what they write through redaction.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.domain import trace
from holdfast.domain.job import JobRecord
from holdfast.domain.redaction import Redaction

FIELDS = ("job_id", "kind", "attempt", "tenant", "trace_id")
"""What a record about a job carries."""
CURRENT: ContextVar[Mapping[str, Any] | None] = ContextVar("holdfast_job", default=None)
"""What is known of the job whose handler is running, for the handler's own records."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def about(job: JobRecord) -> dict[str, Any]:
    """Give what a record about a job carries: `log.warning(…, extra=about(job))`."""
    return {
        "job_id": job.id,
        "kind": job.kind,
        "attempt": job.attempt,
        "tenant": job.tenant,
        "trace_id": trace.told(job.trace_id),
    }


@contextmanager
def handling(job: JobRecord) -> Iterator[None]:
    """Let the records of a handler carry what is known of its job."""
    token = CURRENT.set(about(job))
    try:
        yield
    finally:
        CURRENT.reset(token)


class PlainFormatter(logging.Formatter):
    """A line of text per record."""

    def __init__(self, redaction: Redaction | None = None) -> None:
        super().__init__(_FORMAT)
        self._redaction = redaction or Redaction()

    def format(self, record: logging.LogRecord) -> str:
        """Write a record without what looks like a secret."""
        return self._redaction.text(super().format(record))


class JsonFormatter(logging.Formatter):
    """A JSON object per record, on one line."""

    def __init__(self, redaction: Redaction | None = None) -> None:
        super().__init__()
        self._redaction = redaction or Redaction()

    def format(self, record: logging.LogRecord) -> str:
        """Write a record: time, level, logger and message, and what it carries of a job."""
        told: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redaction.text(record.getMessage()),
        }
        if hasattr(record, FIELDS[0]):
            told |= {name: getattr(record, name, None) for name in FIELDS}
        else:
            told |= CURRENT.get() or {}
        if record.exc_info:
            told["traceback"] = self._redaction.text(self.formatException(record.exc_info))
        return json.dumps(told, ensure_ascii=False, default=str)
