"""The sinks of an application: declared once by name, checked when they are declared."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.client.registry import text
from holdfast.client.sinks.lines import JsonLines
from holdfast.client.sinks.shape import INTERNAL, NAMES, Target, Told
from holdfast.client.sinks.webhook import Webhook
from holdfast.domain.errors import BadInput

if TYPE_CHECKING:
    from asyncio import Runner

Function = Callable[[Any], Any]
TRIES = 10
"""How often a callable is given one event before it is passed over."""
_BATCH = 500


class Call:
    """Hands events to a function of the application; an async one runs on an event loop that is kept."""

    def __init__(self, fn: Function, *, batch: bool) -> None:
        self.most = _BATCH if batch else 1
        self._fn = fn
        self._batch = batch
        self._runner: Runner | None = None

    def deliver(self, told: list[Told]) -> None:
        """Call the function: with all events, or with each in turn."""
        for given in [told] if self._batch else told:
            answer = self._fn(given)
            if inspect.isawaitable(answer):
                from asyncio import Runner

                self._runner = self._runner or Runner()
                self._runner.run(_awaited(answer))

    def close(self) -> None:
        """End the event loop, if there is one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


async def _awaited(answer: Awaitable[Any]) -> None:
    await answer


@dataclass(frozen=True, slots=True)
class Sink:
    """One declared sink."""

    name: str
    target: Function | JsonLines | Webhook
    batch: bool = False
    names: frozenset[str] | None = None
    """The events it is given; all, if None."""
    max_tries: int | None = None
    """How often one event is tried before it is passed over; for ever, if None."""

    def wants(self, name: str) -> bool:
        """Tell whether the sink is to be given events of this name."""
        return not name.startswith(INTERNAL) and (self.names is None or name in self.names)

    def open(self) -> Target:
        """Give a way to hand events over, for one thread's use."""
        if isinstance(self.target, JsonLines | Webhook):
            return self.target
        return Call(self.target, batch=self.batch)


class Sinks:
    """All sinks of one application."""

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}

    def add(
        self,
        name: str,
        target: Function | JsonLines | Webhook,
        *,
        batch: bool = False,
        names: Iterable[str] | None = None,
        max_tries: int | None = None,
    ) -> Sink:
        """Declare a sink: a callable, `JsonLines(path)` or `Webhook(url, secret=...)`.

        A callable takes one event, or with `batch` a list of them. `names` leaves only events of these names. An event
        that a callable has refused `max_tries` times (10, unless given) is passed over; a file or a webhook is tried
        for ever, unless given.
        """
        if text(name, "sink's name").startswith(INTERNAL):
            msg = f"The names of sinks that begin with {INTERNAL!r} are Holdfast's own; {name!r} needs another."
            raise BadInput(msg)
        if name in self._sinks:
            msg = f"The sink {name!r} is declared already; give one of the two another name."
            raise BadInput(msg)
        ours = isinstance(target, JsonLines | Webhook)
        if not ours:
            _check_function(name, target)
        if not isinstance(batch, bool) or (batch and ours):
            msg = f"The sink {name!r}: batch is True or False, and only for a callable; files and webhooks see to it."
            raise BadInput(msg)
        tries = _tries(name, max_tries)
        sink = Sink(name, target, batch, _filter(name, names), tries if ours or tries else TRIES)
        self._sinks[name] = sink
        return sink

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._sinks.values())

    def __len__(self) -> int:
        return len(self._sinks)


def _check_function(name: str, target: Any) -> None:
    if not callable(target) or isinstance(target, type):
        shown = target.__name__ if isinstance(target, type) else type(target).__name__
        msg = f"The sink {name!r} is a callable, JsonLines(path) or Webhook(url, secret=...), not {shown}."
        raise BadInput(msg)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        msg = f"The sink {name!r} is a generator, which would never run; let it return instead of yield."
        raise BadInput(msg)
    try:
        inspect.signature(target).bind(None)
    except TypeError:
        msg = f"The sink {name!r} is called with one argument: an event, or with batch=True a list of events."
        raise BadInput(msg) from None
    except ValueError:
        return


def _filter(name: str, names: Iterable[str] | None) -> frozenset[str] | None:
    if names is None:
        return None
    wanted = [] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    if not wanted or any(one not in NAMES for one in wanted):
        msg = f"The sink {name!r}: names is a list of one or more of {', '.join(NAMES)}; {names!r} is not."
        raise BadInput(msg)
    return frozenset(wanted)


def _tries(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        msg = f"The sink {name!r}: max_tries is a whole number of 1 or more, not {value!r}."
        raise BadInput(msg)
    return value
