"""What came of steps and children, as values that a workflow can go on with: the same now and whenever it is read."""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from holdfast.client.shapes import whole_adapter
from holdfast.domain import codec
from holdfast.domain.errors import BadInput, ChildFailed, JobCancelled, JobDead
from holdfast.domain.job import JobRecord, State

FAILURES = ("fail", "ignore", "collect")
"""What `gather` does about a child that did not succeed: fail the parent, give None for it, or give the exception."""


def result_type(fn: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """Give the type that a function says it returns; None if it says nothing that could be checked."""
    hint = (getattr(fn, "__annotations__", None) or {}).get("return", Any)
    if hint is Any or hint is None:
        return None
    try:
        if isinstance(hint, str):
            hint = inspect.get_annotations(fn, eval_str=True).get("return", Any)
        return None if hint is Any or hint is None else _adapter(hint)
    except (NameError, TypeError, ValueError, PydanticUserError):
        return None


@lru_cache(maxsize=1024)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return whole_adapter(hint)


def encode_plain(value: object) -> str | None:
    """Encode a value that needs no check, because JSON writes it as it is; None for any other."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is int and codec.MIN_INT <= value <= codec.MAX_INT:
        return str(value)
    return None


def is_as_said(fn: Callable[..., Any], value: object) -> bool:
    """Tell whether a value that `encode_plain` takes is the same when it is read: the function says nothing else."""
    hint = (getattr(fn, "__annotations__", None) or {}).get("return", Any)
    return hint is type(value) or hint is Any


def read_typed(fn: Callable[..., Any], text: str) -> Any:
    """Read a stored result as the type the function says it returns; as plain JSON if it returned something else."""
    adapter = result_type(fn)
    if adapter is None:
        return codec.decode(text)
    try:
        return adapter.validate_json(text)
    except ValidationError:
        return codec.decode(text)


def policy(failures: str) -> str:
    """Check what is to be done about children that do not succeed."""
    if failures not in FAILURES:
        msg = f"failures is one of {', '.join(FAILURES)}; {failures!r} is not."
        raise BadInput(msg)
    return failures


def collected(ids: Sequence[str], found: Sequence[JobRecord | None], failures: str) -> list[dict[str, Any]]:
    """Say how all children ended (the results of those that succeeded are left to be filled in); raises `ChildFailed`
    if one did not succeed and that is the policy.
    """
    ends: list[dict[str, Any]] = []
    for id_, child in zip(ids, found, strict=True):
        if child is not None and child.state is State.SUCCEEDED:
            ends.append({"ok": None})
            continue
        code = "purged" if child is None else child.failure_code or child.state.value
        state = State.DEAD.value if child is None else child.state.value
        if failures == "fail":
            kind = "" if child is None else f" ({child.kind})"
            msg = f"child {id_}{kind} is {state}: {code}"
            raise ChildFailed(msg)
        ends.append({"not": state, "id": id_, "code": code})
    return ends


def opened(ends: Sequence[dict[str, Any]], failures: str, typed: Callable[[int, Any], Any]) -> list[Any]:
    """Give the recorded ends of children as results; `typed` makes the n-th one what its kind says it returns."""
    results: list[Any] = []
    for place, end in enumerate(ends):
        if "ok" in end:
            results.append(typed(place, end["ok"]))
        elif failures == "collect":
            error = JobCancelled if end["not"] == State.CANCELLED.value else JobDead
            results.append(error(f"Job {end['id']} is {end['not']}: {end['code']}."))
        else:
            results.append(None)
    return results
