"""The choices a caller can make for one job, checked and turned into a `NewJob`."""

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Self

from holdfast.client.registry import Kind, text
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
    connection: Any = None

    def having(self, **choices: Any) -> Self:
        """Add choices, checked, to these; `None` means not chosen."""
        if choices.get("run_after") is not None and choices.get("run_at") is not None:
            msg = "run_after and run_at both say when the job may run; give one of them."
            raise BadInput(msg)
        chosen = dict(
            _checked(name, value) for name, value in choices.items() if value is not None or name not in _NAMES
        )
        if "delay" in chosen:
            chosen["run_at"] = None
        return replace(self, **chosen)

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
        )


_NAMES = {field.name for field in fields(Options)} - {"delay"} | {"run_after"}


def _checked(name: str, value: Any) -> tuple[str, Any]:
    match name:
        case "queue" | "tenant" | "key" | "user" | "trace_id":
            return name, value if name == "tenant" and value == "" else text(value, name)
        case "priority":
            return name, priority(value)
        case "run_after":
            if isinstance(value, datetime):
                return "run_at", instant(value, "run_after")
            return "delay", duration(value, "run_after")
        case "run_at":
            return name, instant(value, "run_at")
        case "key_ttl" | "expires_after":
            return name, duration(value, name)
        case "trigger":
            if not isinstance(value, str) or value not in set(Trigger):
                msg = f"A trigger is one of {', '.join(Trigger)}; {value!r} is not."
                raise BadInput(msg)
            return name, str(value)
        case "connection":
            return name, value
        case _:
            msg = f"There is no option {name!r}."
            raise BadInput(msg)


def priority(value: int) -> int:
    """Check a priority."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_PRIORITY:
        msg = f"A priority is a whole number between -{_MOST_PRIORITY:,} and {_MOST_PRIORITY:,}, not {value!r}."
        raise BadInput(msg)
    return value
