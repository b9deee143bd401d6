"""What a server refuses, as the errors that Holdfast raises for the same thing without a server."""

from typing import Any

from holdfast.domain import errors
from holdfast.domain.errors import BadInput, BadPayload, CommitUnknown, HoldfastError, IllegalMove, StoreUnavailable
from holdfast.domain.move import Answer

_KNOWN = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HoldfastError)
}
_STALE = {Answer.ALREADY_CLAIMED.value, Answer.NO_OP_TERMINAL.value}
_SENTENCE = 1_000


class Refused(HoldfastError):
    """The server refused for a reason that only servers have; `status` and `code` say which."""

    code = "refused"

    def __init__(self, message: str, *, status: int, code: str = "refused") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NotAllowed(Refused):
    """The token is missing or not valid, or lacks what this takes."""


def refusal(status: int, body: Any) -> HoldfastError:
    """Give the error that an answer stands for; `body` is its JSON, or None if it has none."""
    problem = body if isinstance(body, dict) else {}
    code = str(problem.get("code") or "refused")[:100]
    told = str(problem.get("detail") or f"The server answered with status {status} and gave no reason.")[:_SENTENCE]
    if problem.get("reason") in _STALE:
        return IllegalMove(told, reason=problem["reason"])
    known = _KNOWN.get(code.replace("-", "_"))
    if known is not None and known is not IllegalMove:
        return known(told)
    match status:
        case 401 | 403:
            return NotAllowed(told, status=status, code=code)
        case 413:
            return BadPayload(told)
        case 422:
            return BadInput(told)
        case 502 | 503 | 504:
            return StoreUnavailable(told)
        case _:
            return Refused(told, status=status, code=code)


def silence(url: str, trouble: str, *, sent: bool, reads: bool) -> HoldfastError:
    """Give the error for a server that did not answer; `sent` tells that it may have had the request."""
    if sent and not reads:
        msg = f"The server at {url} did not answer ({trouble}); what was asked for is done whole or not at all."
        return CommitUnknown(msg)
    return StoreUnavailable(
        f"The server at {url} does not answer ({trouble}); is it running there? Nothing was changed."
    )
