"""`@app.job`, bare or with defaults, typed so that `enqueue` has the function's own parameters without its context."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from inspect import signature
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from holdfast.client.context import Context
from holdfast.client.function import JobFunction
from holdfast.client.options import priority as checked_priority
from holdfast.client.payload import takes_context
from holdfast.client.registry import RunIn, queue_name
from holdfast.domain.errors import BadInput
from holdfast.domain.moments import time_limit
from holdfast.domain.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
E_contra = TypeVar("E_contra", contravariant=True)
F_contra = TypeVar("F_contra", contravariant=True)
Async = Coroutine[Any, Any, R]
_MOST_VERSION = 1_000_000_000


class _First(Protocol[P, R_co]):
    """A handler whose first parameter is `ctx`. The name counts, or a first parameter of type `object` would do."""

    def __call__(self, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _After1(Protocol[A_contra, R_co]):
    """A handler of one parameter and `ctx`; a `ParamSpec` has no room for a parameter at its end."""

    def __call__(self, a: A_contra, /, *, ctx: Context) -> R_co: ...


class _After2(Protocol[A_contra, B_contra, R_co]):
    """A handler of two parameters and `ctx`."""

    def __call__(self, a: A_contra, b: B_contra, /, *, ctx: Context) -> R_co: ...


class _After3(Protocol[A_contra, B_contra, C_contra, R_co]):
    """A handler of three parameters and `ctx`."""

    def __call__(self, a: A_contra, b: B_contra, c: C_contra, /, *, ctx: Context) -> R_co: ...


class _After4(Protocol[A_contra, B_contra, C_contra, D_contra, R_co]):
    """A handler of four parameters and `ctx`."""

    def __call__(self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, /, *, ctx: Context) -> R_co: ...


class _After5(Protocol[A_contra, B_contra, C_contra, D_contra, E_contra, R_co]):
    """A handler of five parameters and `ctx`."""

    def __call__(self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, e: E_contra, /, *, ctx: Context) -> R_co: ...


class _After6(Protocol[A_contra, B_contra, C_contra, D_contra, E_contra, F_contra, R_co]):
    """A handler of six parameters and `ctx`."""

    def __call__(  # noqa: PLR0917 - there are as many as the handler has
        self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, e: E_contra, f: F_contra, /, *, ctx: Context
    ) -> R_co: ...


class Registrar(Protocol):
    """What the decorator needs of its application."""

    def _decorated(self, fn: Callable[..., Any], **defaults: Any) -> JobFunction[..., Any]: ...


WORKFLOW = "@app.workflow"


class JobDecorator:
    """`app.job`: call it with a function, or with defaults to get a decorator."""

    def __init__(self, app: Registrar, defaults: dict[str, Any], called: str = "@app.job") -> None:
        self._app = app
        self._defaults = defaults
        self._called = called

    @overload
    def __call__(self, fn: _First[P, Async[R]], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, fn: _After1[A, Async[R]], /) -> JobFunction[[A], R]: ...
    @overload
    def __call__(self, fn: _After2[A, B, Async[R]], /) -> JobFunction[[A, B], R]: ...
    @overload
    def __call__(self, fn: _After3[A, B, C, Async[R]], /) -> JobFunction[[A, B, C], R]: ...
    @overload
    def __call__(self, fn: _After4[A, B, C, D, Async[R]], /) -> JobFunction[[A, B, C, D], R]: ...
    @overload
    def __call__(self, fn: _After5[A, B, C, D, E, Async[R]], /) -> JobFunction[[A, B, C, D, E], R]: ...
    @overload
    def __call__(self, fn: _After6[A, B, C, D, E, F, Async[R]], /) -> JobFunction[[A, B, C, D, E, F], R]: ...
    @overload
    def __call__(self, fn: _First[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, fn: _After1[A, R], /) -> JobFunction[[A], R]: ...
    @overload
    def __call__(self, fn: _After2[A, B, R], /) -> JobFunction[[A, B], R]: ...
    @overload
    def __call__(self, fn: _After3[A, B, C, R], /) -> JobFunction[[A, B, C], R]: ...
    @overload
    def __call__(self, fn: _After4[A, B, C, D, R], /) -> JobFunction[[A, B, C, D], R]: ...
    @overload
    def __call__(self, fn: _After5[A, B, C, D, E, R], /) -> JobFunction[[A, B, C, D, E], R]: ...
    @overload
    def __call__(self, fn: _After6[A, B, C, D, E, F, R], /) -> JobFunction[[A, B, C, D, E, F], R]: ...
    @overload
    def __call__(self, fn: Callable[P, Async[R]], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        priority: int | None = None,
        timeout: float | timedelta | None = None,
        permanent: tuple[type[BaseException], ...] | type[BaseException] = (),
        run_in: RunIn | None = None,
        crash_cap: int | None = None,
        version: int | None = None,
    ) -> "JobDecorator": ...
    def __call__(self, fn: Callable[..., Any] | None = None, /, **defaults: Any) -> Any:
        """Register a function, or collect the defaults to register one with."""
        chosen = chosen_defaults(self._called, **defaults)
        if fn is None:
            return JobDecorator(self._app, chosen, self._called)
        if defaults or not callable(fn):
            msg = f"Write {self._called} or {self._called}(queue=..., retry=...), with options by name."
            raise BadInput(msg)
        if self._called == WORKFLOW:
            require_steps(fn, self._defaults.get("run_in"))
        return self._app._decorated(fn, **self._defaults)  # noqa: SLF001


def require_steps(fn: Callable[..., Any], run_in: RunIn | None) -> None:
    """Refuse a workflow that could not run its steps."""
    name = getattr(fn, "__name__", fn)
    if not takes_context(fn):
        msg = f"{name}: a workflow takes a parameter `ctx: Context`, which runs its steps."
        raise BadInput(msg)
    if run_in == "process":
        msg = f"{name}: a workflow runs in the worker's own process, where its steps are recorded; leave run_in out."
        raise BadInput(msg)


def chosen_defaults(called: str, **defaults: Any) -> dict[str, Any]:
    """Check what a user chose for a kind in a call of this name."""
    known = signature(checked_defaults).parameters
    if unknown := defaults.keys() - known.keys():
        msg = f"{called} has no option {min(unknown)!r}; it takes {', '.join(known)}."
        raise TypeError(msg)
    return checked_defaults(**defaults)


def checked_defaults(
    *,
    name: str | None = None,
    queue: str | None = None,
    retry: Retry | None = None,
    priority: int | None = None,
    timeout: float | timedelta | None = None,
    permanent: tuple[type[BaseException], ...] | type[BaseException] = (),
    run_in: RunIn | None = None,
    crash_cap: int | None = None,
    version: int | None = None,
) -> dict[str, Any]:
    """Check a kind's defaults; what is not given is left to the kind."""
    given: dict[str, Any] = {"name": name, "run_in": run_in}
    if queue is not None:
        given["queue"] = queue_name(queue)
    if retry is not None:
        if not isinstance(retry, Retry):
            msg = f"retry= takes Retry.exponential(...), Retry.table(...) or Retry.fixed(...), not {retry!r}."
            raise BadInput(msg)
        given["retry"] = retry
    if priority is not None:
        given["priority"] = checked_priority(priority)
    if timeout is not None:
        given["timeout"] = time_limit(timeout)
    exceptions = tuple(permanent) if isinstance(permanent, tuple | list) else (permanent,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in exceptions):
        msg = f"permanent= takes exception classes, not {permanent!r}."
        raise BadInput(msg)
    if crash_cap is not None:
        if isinstance(crash_cap, bool) or not isinstance(crash_cap, int) or crash_cap < 1:
            msg = f"crash_cap is a whole number of 1 or more, not {crash_cap!r}."
            raise BadInput(msg)
        given["crash_cap"] = crash_cap
    if version is not None:
        given["code_version"] = _version(version)
    return {**given, "permanent": exceptions}


def _version(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_VERSION:
        msg = f"version is a whole number of 0 or more, not {value!r}."
        raise BadInput(msg)
    return value
