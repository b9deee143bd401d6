"""Pipelines: an ordered list of functions, each a durable step that gets the payload and the results so far."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

from holdfast.client.context import Context
from holdfast.client.durable import Link, checked_name, positional_room
from holdfast.client.payload import context_of, hints_of
from holdfast.domain.errors import BadInput
from holdfast.domain.moments import time_limit
from holdfast.domain.retry import Retry

_GIVEN = 2
"""What a step can be given by position: the payload and the results so far."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline with choices of its own; a plain function will do where there are none."""

    fn: Callable[..., Any]
    name: str | None = None
    undo: Callable[..., Any] | None = None
    retry: Retry | None = None
    timeout: float | timedelta | None = None


def pipeline_function(name: str, steps: Sequence[Any]) -> tuple[Callable[..., Any], list[Link]]:
    """Make the function that runs a pipeline; give it and its steps."""
    if isinstance(steps, str) or not isinstance(steps, Sequence) or not steps:
        msg = f"The pipeline {name!r} needs a list of one or more functions."
        raise BadInput(msg)
    links = [_link(name, step if isinstance(step, Step) else Step(step)) for step in steps]
    names = [link.name for link in links]
    for each in names:
        if names.count(each) > 1:
            msg = f"The pipeline {name!r} has two steps named {each!r}; name one of them otherwise: Step(fn, name=...)."
            raise BadInput(msg)
    run = _function(links)
    run.__name__ = run.__qualname__ = name
    run.__annotations__ = {"payload": _payload(links[0]), "ctx": Context, "return": _returned(links[-1])}
    return run, links


def _function(links: list[Link]) -> Callable[..., Any]:
    if any(inspect.iscoroutinefunction(link.fn) for link in links):

        async def run_async(payload: Any, ctx: Context) -> Any:
            return await ctx.run_pipeline(links, payload)

        return run_async

    def run_sync(payload: Any, ctx: Context) -> Any:
        return ctx.run_pipeline(links, payload)

    return run_sync


def _link(pipeline: str, step: Step) -> Link:
    fn = getattr(step.fn, "function", step.fn)
    undo = getattr(step.undo, "function", step.undo)
    if not _is_readable(fn) or not hasattr(fn, "__name__") or (undo is not None and not _is_readable(undo)):
        msg = f"The steps of the pipeline {pipeline!r} are named functions, or Step(fn, ...); {step.fn!r} is not one."
        raise BadInput(msg)
    if step.retry is not None and not isinstance(step.retry, Retry):
        msg = f"retry= takes Retry.exponential(...), Retry.table(...) or Retry.fixed(...), not {step.retry!r}."
        raise BadInput(msg)
    context = context_of(hints_of(fn))
    room = positional_room(fn)
    if room is not None:
        room = min(room - (context is not None and _is_positional(fn, context)), _GIVEN)
    _require_no_more(pipeline, fn, context)
    timeout = None if step.timeout is None else time_limit(step.timeout)
    if context is not None and room is not None and list(inspect.signature(fn).parameters).index(context) < room:
        fn = _by_name(fn, context)
    undo_context = None if undo is None else context_of(hints_of(undo))
    return Link(checked_name(step.name or fn.__name__), fn, room, context, undo, undo_context, step.retry, timeout)


def _is_readable(fn: object) -> bool:
    """Tell whether something can be called, and what with."""
    try:
        return callable(fn) and inspect.signature(fn) is not None
    except ValueError:  # written in C, and silent about itself
        return False


def _require_no_more(pipeline: str, fn: Callable[..., Any], context: str | None) -> None:
    """Refuse a function that could never be called, because it needs more than it would be given."""
    parameters = inspect.signature(fn).parameters.values()
    needed = [each for each in parameters if each.default is each.empty and each.name != context]
    by_position = [each for each in needed if each.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_name = [each for each in needed if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if more := [*by_position[_GIVEN:], *by_name]:
        given = "the payload, the results so far and a context"
        msg = f"A step of a pipeline is given {given}; {fn.__name__!r} of {pipeline!r} needs {more[0].name!r} as well."
        raise BadInput(msg)


def _by_name(fn: Callable[..., Any], context: str) -> Callable[..., Any]:
    """Let a function be called by position whose context stands before other parameters."""
    names = [name for name in inspect.signature(fn).parameters if name != context]
    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def acall(*given: Any, **named: Any) -> Any:
            return await fn(**dict(zip(names, given, strict=False)), **named)

        return acall

    @wraps(fn)
    def call(*given: Any, **named: Any) -> Any:
        return fn(**dict(zip(names, given, strict=False)), **named)

    return call


def _is_positional(fn: Callable[..., Any], name: str) -> bool:
    return inspect.signature(fn).parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY


def _payload(link: Link) -> Any:
    """Give the type of a pipeline's payload: what its first step says of its first parameter."""
    hints = [hint for name, hint in hints_of(link.fn).items() if name != link.context]
    return hints[0] if hints else Any


def _returned(link: Link) -> Any:
    hint = inspect.get_annotations(link.fn, eval_str=True).get("return", Any)
    return Any if hint is None else hint
