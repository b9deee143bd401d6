"""The choices a caller can make for one job, checked and turned into a `NewJob`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from holdfast.client.registry import Kind, queue_name, text
from holdfast.domain.codec import MAX_INT
from holdfast.domain.errors import BadInput
from holdfast.domain.job import NewJob, Trigger
from holdfast.domain.moments import Micros, duration, instant

_MOST_PRIORITY = 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """What `using(...)` collected; `None` leaves the kind's default."""

    queue: str | None = None
    priority: int | None = None
    delay: Micros = 0
    run_at: Micros | None = None
    key: str | None = None
    key_ttl: Micros | None = None
    tenant: str = ""
    user: str | None = None
    trace_id: str | None = None
    trigger: str = Trigger.MANUAL.value
    expires_after: Micros | None = None
    credits: int = 0
    unique: str | None = None
    debounce: Micros | None = None
    connection: Any = None
    group: str | None = None

    def having(self, **choices: Any) -> "Options":
        """Add choices, checked, to these; `None` means not chosen."""
        if choices.get("run_after") is not None and choices.get("run_at") is not None:
            msg = "run_after and run_at both say when the job may run; give one of them."
            raise BadInput(msg)
        chosen = dict(
            _checked(name, value) for name, value in choices.items() if value is not None or name not in _NAMES
        )
        if "delay" in chosen:
            chosen["run_at"] = None
        return _agreeing(replace(self, **chosen))

    def new_job(self, kind: Kind, payload: str) -> NewJob:
        """Combine a kind, a payload and these choices."""
        return NewJob(
            kind.name,
            payload,
            self.queue or kind.queue,
            self.tenant,
            self.user,
            kind.priority if self.priority is None else self.priority,
            kind.retry_spec,
            kind.retry.max_attempts,
            kind.crash_cap,
            self.trigger,
            self.trace_id,
            self.key,
            self.key_ttl,
            self.delay,
            self.run_at,
            self.expires_after,
            len(kind.links),
            code_version=kind.code_version,
            credits=self.credits,
            unique=self.unique,
            group=self.group,
        )


def _agreeing(options: Options) -> Options:
    """Refuse choices that cannot be kept together."""
    if options.key is None:
        for name in ("unique", "debounce", "key_ttl"):
            if getattr(options, name) is not None:
                msg = f"{name}= says how long a key is taken; give the key as well."
                raise BadInput(msg)
    if options.debounce is None:
        return options
    if options.run_at is not None or options.delay not in (0, options.debounce) or options.connection is not None:
        msg = "debounce= says when the job runs; it goes with neither run_after, run_at nor connection."
        raise BadInput(msg)
    if options.unique == "active":
        msg = "A job is unique while it is active, or debounced while it waits; give one of unique= and debounce=."
        raise BadInput(msg)
    return replace(options, delay=options.debounce, unique="waiting")


_NAMES = {field.name for field in fields(Options)} - {"delay"} | {"run_after"}


def _checked(name: str, value: Any) -> tuple[str, Any]:
    match name:
        case "queue" | "tenant" | "key" | "user" | "trace_id" | "group":
            return name, _named(name, value)
        case "priority":
            return name, priority(value)
        case "run_after":
            if isinstance(value, datetime):
                return "run_at", instant(value, "run_after")
            return "delay", duration(value, "run_after")
        case "run_at":
            return name, instant(value, "run_at")
        case "key_ttl" | "expires_after" | "debounce":
            return name, duration(value, name)
        case "credits":
            return name, amount(value, "credits")
        case "trigger" | "unique":
            return name, _one_of(name, value)
        case "connection":
            return name, value
        case _:
            msg = f"There is no option {name!r}."
            raise BadInput(msg)


def _named(name: str, value: str) -> str:
    if name == "queue":
        return queue_name(value)
    return value if name == "tenant" and value == "" else text(value, name)


_CHOICES = {"trigger": tuple(Trigger), "unique": ("active",)}


def _one_of(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in _CHOICES[name]:
        msg = f"A {name} is one of {', '.join(_CHOICES[name])}; {value!r} is not."
        raise BadInput(msg)
    return str(value)


def amount(value: int, what: str) -> int:
    """Check a number of credits."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT // 2:
        msg = f"{what} is a whole number of 0 or more, not {value!r}."
        raise BadInput(msg)
    return value


def priority(value: int) -> int:
    """Check a priority."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_PRIORITY:
        msg = f"A priority is a whole number between -{_MOST_PRIORITY:,} and {_MOST_PRIORITY:,}, not {value!r}."
        raise BadInput(msg)
    return value


def served(value: Sequence[str] | Mapping[str, int | None] | None) -> dict[str, int | None] | None:
    """Check the queues that a worker is to serve, with the most jobs of each at once."""
    if value is None:
        return None
    if isinstance(value, str):
        msg = f"queues takes a list of names, not the text {value!r}; write queues=[{value!r}]."
        raise BadInput(msg)
    named = dict(value) if isinstance(value, Mapping) else dict.fromkeys(value)
    for name, most in named.items():
        queue_name(name, "leave queues out to serve every queue")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            msg = f"The queue {name!r} may run a whole number of 1 or more jobs at once, not {most!r}."
            raise BadInput(msg)
    if not named:
        msg = "queues is empty; leave it out to serve every queue."
        raise BadInput(msg)
    return named
