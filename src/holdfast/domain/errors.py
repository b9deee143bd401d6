"""Every error Holdfast raises, each with a stable `code` and a sentence for a person.

Three families: bad input (nothing changed, fix the call), refusals (the job's state does not allow it) and store
trouble (nothing is wrong with the call). `Permanent` and `Snooze` are raised by handlers, not by Holdfast.
"""

from datetime import timedelta

_LONGEST_SNOOZE = timedelta(days=100 * 366).total_seconds()


class HoldfastError(Exception):
    """The root of all errors raised by Holdfast."""

    code = "error"


class BadInput(HoldfastError, ValueError):
    """The call itself is wrong; nothing was changed."""

    code = "bad_input"


class BadPayload(BadInput):
    """A payload that its kind does not accept, or that no store could keep."""

    code = "bad_payload"


class BadEnvelope(BadInput):
    """A delivery that is not a version 1 envelope."""

    code = "bad_envelope"


class BadSignature(BadInput):
    """A request to a hook that was not signed with its secret, or too long ago; nothing was enqueued."""

    code = "bad_signature"


class UnknownKind(BadInput):
    """No handler is registered under this kind."""

    code = "unknown_kind"


class KeyConflict(HoldfastError):
    """The idempotency key already belongs to a job with another payload."""

    code = "key_conflict"


class InsufficientCredits(HoldfastError):
    """The tenant's account does not hold the credits this would take; nothing was changed."""

    code = "insufficient_credits"


class JobNotFound(HoldfastError, LookupError):
    """No job has this id (or it has been purged)."""

    code = "job_not_found"


class ScheduleNotFound(HoldfastError, LookupError):
    """No schedule is stored under this name."""

    code = "schedule_not_found"


class TokenNotFound(HoldfastError, LookupError):
    """No token has this id (or it ended long ago)."""

    code = "token_not_found"


class IllegalMove(HoldfastError):
    """The lifecycle has no such transition from the job's present state.

    `reason` is what a worker reports: `already-claimed` while the job may still move, `no-op-terminal` once it is
    final.
    """

    code = "illegal_move"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class JobDead(HoldfastError):
    """Raised by `job.result()` when the job ended as `dead`."""

    code = "job_dead"


class JobCancelled(HoldfastError):
    """Raised by `job.result()` when the job was cancelled."""

    code = "job_cancelled"


class ResultTimeout(HoldfastError, TimeoutError):
    """The job did not reach a terminal state in the time allowed."""

    code = "result_timeout"


class StoreError(HoldfastError):
    """The store could not do what was asked; nothing was changed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be reached, is locked, full or read-only; asking again later may work."""

    code = "store_unavailable"


class StoreUnreachable(StoreUnavailable):
    """Nobody answers at the store's address; a worker waits for it."""

    code = "store_unreachable"


class StoreUnusable(StoreError):
    """The store is not one this version can work with; asking again will not help."""

    code = "store_unusable"


class CommitUnknown(StoreError):
    """The connection broke while committing: the change is either whole or absent. Safe to ask again."""

    code = "commit_unknown"


class ArtifactsUnavailable(StoreUnavailable):
    """The place where large payloads and results are kept cannot be reached or written; asking again may work."""

    code = "artifacts_unavailable"


class ArtifactMissing(StoreError):
    """A payload or result that was kept outside the store is not where it was put; it may be brought back."""

    code = "artifact_missing"


class ArtifactDamaged(StoreError):
    """A payload or result that was kept outside the store is not what it was; asking again will not help."""

    code = "artifact_damaged"


class Permanent(Exception):
    """Raise from a handler when trying again cannot help: the job goes straight to `dead` / `rejected`."""

    code = "permanent"

    def __init__(self, message: str = "", *, code: str = "permanent") -> None:
        super().__init__(message)
        self.code = code


class ChildFailed(Permanent):
    """Raised by `ctx.gather` in a parent one of whose children did not succeed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, code="child_failed")


class StepTimeout(HoldfastError, TimeoutError):
    """A step took longer than its own timeout."""

    code = "step_timeout"

    def __init__(self, message: str = "The step took longer than its timeout.") -> None:
        super().__init__(message)


class Snooze(Exception):
    """Raise from a handler to run again later without charging an attempt."""

    seconds = 0.0

    def __init__(self, delay: float | timedelta) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST_SNOOZE:
            msg = f"Snooze needs a delay of zero or more seconds, and less than a hundred years, not {delay!r}."
            raise BadInput(msg)
        super().__init__(f"snoozed for {seconds:g} s")
        self.seconds = float(seconds)
