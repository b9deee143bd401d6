"""The kinds an application knows: which handler runs them, how, and with what defaults.

Handlers are found by name in this registry and nowhere else; a payload can never name code to import.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from holdfast.client.durable import Link
from holdfast.client.payload import Binder, is_model
from holdfast.client.shapes import whole_adapter
from holdfast.domain import codec
from holdfast.domain.errors import BadInput, UnknownKind
from holdfast.domain.limits import ALL
from holdfast.domain.moments import Micros
from holdfast.domain.retry import DEFAULT_RETRY, Retry

RunIn = Literal["loop", "thread", "process"]
LONGEST_NAME = 255


class JobHandler:
    """A handler as a class: name the payload's model, and handle it. Subclass it and `app.register` the class."""

    @classmethod
    def payload_model(cls) -> type[BaseModel]:
        """Give the model that payloads of this kind are validated with."""
        raise NotImplementedError

    def handle(self, payload: Any) -> Any:
        """Do the work; may be `async def`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Kind:
    """One kind of job: its handler and its defaults."""

    name: str
    fn: Callable[..., Any]
    queue: str = "default"
    retry: Retry = DEFAULT_RETRY
    priority: int = 0
    timeout: Micros | None = None
    permanent: tuple[type[BaseException], ...] = ()
    run_in: RunIn = "thread"
    crash_cap: int = 3
    links: tuple[Link, ...] = ()
    """The steps of a pipeline."""
    code_version: int = 0
    """Which version of a workflow's code this is; a job runs on the version it was enqueued with."""

    @cached_property
    def retry_spec(self) -> str:
        """The retry policy as it is stored with each job."""
        return self.retry.spec

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler is awaited."""
        return inspect.iscoroutinefunction(self.fn)

    @cached_property
    def binder(self) -> Binder:
        """The kind's payload."""
        return Binder(self.name, self.fn)

    @cached_property
    def _result(self) -> TypeAdapter[Any]:
        hint = inspect.signature(self.fn).return_annotation
        try:
            if isinstance(hint, str):
                hint = inspect.get_annotations(self.fn, eval_str=True).get("return", Any)
            return whole_adapter(Any if hint in (inspect.Signature.empty, None) else hint)
        except (NameError, TypeError, PydanticUserError):
            return TypeAdapter(Any)

    def read_value(self, value: Any) -> Any:
        """Give a result that is plain JSON as the type the handler says it returns, if it is of that type."""
        try:
            return self._result.validate_python(value)
        except ValidationError:
            return value

    def read_result(self, text: str) -> Any:
        """Read a stored result as the type the handler says it returns; as plain JSON if it returned something else."""
        try:
            return self._result.validate_json(text)
        except ValidationError:
            return codec.decode(text)


class Registry:
    """All kinds of one application. A kind may have several versions; the highest is what new jobs are made for."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[int, Kind]] = {}

    def add(self, kind: Kind) -> Kind:
        """Register a kind; a name is given once for every version."""
        versions = self._kinds.setdefault(kind.name, {})
        known = versions.get(kind.code_version)
        if known is not None and known.fn is not kind.fn:
            which = f" in version {kind.code_version}" if kind.code_version else ""
            msg = f"The kind {kind.name!r} is registered already{which}; give one of the two another name=."
            raise BadInput(msg)
        versions[kind.code_version] = kind
        return kind

    def __getitem__(self, name: str) -> Kind:
        versions = self._kinds.get(name) if isinstance(name, str) else None
        if versions is None:
            known = ", ".join(sorted(self._kinds)) or "none yet"
            msg = f"No handler is registered for the kind {name!r}; known kinds: {known}."
            raise UnknownKind(msg)
        return versions[max(versions)]

    def get(self, name: str, code_version: int | None = None) -> Kind | None:
        """Find a kind, if it is registered: a certain version of it, or the highest."""
        versions = self._kinds.get(name)
        if versions is None:
            return None
        return versions[max(versions)] if code_version is None else versions.get(code_version)

    def every(self) -> Iterator[Kind]:
        """Go through all versions of all kinds."""
        return (kind for versions in self._kinds.values() for kind in versions.values())

    def make_ready(self) -> None:
        """Make ready to read the payloads of all kinds: a job that has been claimed need not wait for that."""
        for versions in list(self._kinds.values()):
            for kind in list(versions.values()):
                kind.binder.make_ready()

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def kind_of(fn: Callable[..., Any], name: str | None, run_in: RunIn | None, **defaults: Any) -> Kind:
    """Make a kind of a function: async ones run on the loop, others in a thread unless a process is asked for."""
    if not hasattr(fn, "__name__"):
        msg = f"A job is a function; wrap this {type(fn).__name__} in one, with a name and types of its own."
        raise BadInput(msg)
    known_as = text(fn.__name__ if name is None else name, "kind")
    is_async = inspect.iscoroutinefunction(fn)
    if inspect.isasyncgenfunction(fn):
        msg = f"{known_as} is an async generator, and a job has one result: return it in place of yielding."
        raise BadInput(msg)
    if run_in not in (None, "loop", "thread", "process"):
        msg = f"run_in is 'loop', 'thread' or 'process', not {run_in!r}."
        raise BadInput(msg)
    if is_async and run_in == "thread":
        msg = f"{known_as} is async; it runs on the loop or in a process, not in a thread."
        raise BadInput(msg)
    if not is_async and run_in == "loop":
        msg = f"{known_as} is not async; on the loop it would block every other job. Run it in a thread or a process."
        raise BadInput(msg)
    kind = Kind(known_as, fn, run_in=run_in or ("loop" if is_async else "thread"), **defaults)
    kind.binder  # noqa: B018 - refuses parameters that cannot be stored
    return kind


def handler_function(name: str, handler: type[JobHandler]) -> Callable[..., Any]:
    """Give a handler class the shape of a function."""
    text(name, "kind")
    if not (isinstance(handler, type) and hasattr(handler, "payload_model") and hasattr(handler, "handle")):
        msg = f"{name}: a handler class needs payload_model() and handle(payload)."
        raise BadInput(msg)
    try:
        model = handler.payload_model()
    except NotImplementedError:
        model = None
    if not is_model(model):
        msg = f"{name}: payload_model() of a handler class gives the Pydantic model of its payloads."
        raise BadInput(msg)
    try:
        if inspect.isfunction(inspect.getattr_static(handler, "handle")):
            inspect.signature(handler.handle).bind(handler, model)
    except TypeError:
        msg = f"{name}: handle(self, payload) of a handler class takes the payload alone; for a Context, use @app.job."
        raise BadInput(msg) from None

    if inspect.iscoroutinefunction(handler.handle):

        async def run_async(payload: Any) -> Any:
            return await handler().handle(payload)

        run: Callable[..., Any] = run_async
    else:

        def run_sync(payload: Any) -> Any:
            return handler().handle(payload)

        run = run_sync
    run.__annotations__["payload"] = model
    run.__name__ = run.__qualname__ = name
    return run


def text(value: str, what: str) -> str:
    """Check a name: not empty, not long, and printable."""
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME or not value.isprintable():
        shown = repr(value)[:60]
        msg = f"A {what} is 1 to {LONGEST_NAME} printable characters; {shown} is not."
        raise BadInput(msg)
    return value


def queue_name(value: str, instead: str = "name one queue") -> str:
    """Check the name of one queue; `instead` says what to do if all were meant."""
    if text(value, "queue") == ALL:
        msg = f"{ALL!r} stands for all queues, and is the name of none; {instead}."
        raise BadInput(msg)
    return value
