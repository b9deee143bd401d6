"""Sentry: each failed attempt once, when its end has been written.

A report has the job's names as tags, groups by kind, error code and class of exception, and holds the payload and the
traceback without what looks like a secret. Local variables are left out, and so is what else the process has logged:
it is about other jobs. Where reports go is for `sentry_sdk.init` to say.
"""

from collections.abc import Sequence
from typing import Any

import sentry_sdk
from sentry_sdk.utils import event_from_exception

from holdfast.domain import codec, trace
from holdfast.domain.errors import BadPayload
from holdfast.domain.job import Failure, JobRecord
from holdfast.domain.move import Move
from holdfast.domain.redaction import REDACTED, Redaction
from holdfast.runtime.telemetry.watch import Settled, Watch

LONGEST_PAYLOAD = 16_384
"""The largest payload that is sent along, in characters of JSON."""
_MECHANISM = {"type": "holdfast", "handled": True}


class Sentry(Watch):
    """Reports failures."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def settled(self, settled: Sequence[Settled]) -> None:
        """Report the attempts that ended in a failure."""
        for attempt, move in settled:
            if move.failure is not None:
                self._report(attempt.job, move, move.failure, attempt.error)

    def reaped(self, reaped: Sequence[tuple[JobRecord, Move]]) -> None:
        """Report the attempts whose worker was lost."""
        for job, move in reaped:
            if move.failure is not None:
                self._report(job, move, move.failure, None)

    def _report(self, job: JobRecord, move: Move, failure: Failure, error: BaseException | None) -> None:
        client = sentry_sdk.get_client()
        if not client.is_active():
            return
        event = self._exception(failure, error, client.options)
        event |= {
            "level": "error",
            "logger": "holdfast",
            "transaction": job.kind,
            "fingerprint": [job.kind, failure.code, failure.code if error is None else _name(error)],
            "tags": _tags(job, failure),
            "contexts": {"job": self._job(job, move)},
        }
        if error is None and move.traceback is not None:
            event["extra"] = {"traceback": self._redaction.text(move.traceback)}
        client.capture_event(event, scope=sentry_sdk.Scope())

    def _exception(self, failure: Failure, error: BaseException | None, options: dict[str, Any]) -> Any:
        """Say what was raised; or, where only the failure is known, that."""
        if error is None:
            return {
                "exception": {"values": [{"type": failure.code, "value": failure.message, "mechanism": _MECHANISM}]}
            }
        plain = {**options, "include_local_variables": False}
        event, _ = event_from_exception(error, client_options=plain, mechanism=_MECHANISM)
        for value in event.get("exception", {}).get("values", []):
            value["value"] = self._redaction.text(str(value.get("value") or ""))
            for frame in (value.get("stacktrace") or {}).get("frames", []):
                frame.pop("vars", None)
                for part in ("context_line", "pre_context", "post_context"):
                    if frame.get(part):
                        frame[part] = self._lines(frame[part])
        return event

    def _lines(self, lines: str | list[str]) -> str | list[str]:
        return self._redaction.text(lines) if isinstance(lines, str) else [self._redaction.text(line) for line in lines]

    def _job(self, job: JobRecord, move: Move) -> dict[str, Any]:
        return {
            "id": job.id,
            "kind": job.kind,
            "queue": job.queue,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "state": move.state.value,
            "payload": self._payload(job.payload),
        }

    def _payload(self, payload: str) -> Any:
        if len(payload) > LONGEST_PAYLOAD:
            return f"{len(payload):,} characters"
        try:
            return self._redaction.value(codec.decode(payload))
        except BadPayload:
            return REDACTED


def _tags(job: JobRecord, failure: Failure) -> dict[str, str]:
    tags = {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "attempt": str(job.attempt),
        "tenant": job.tenant,
        "error_code": failure.code,
        "trace_id": trace.told(job.trace_id),
    }
    return {name: value for name, value in tags.items() if value}


def _name(error: BaseException) -> str:
    return type(error).__name__
