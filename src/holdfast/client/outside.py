"""Jobs that are asked for from outside, by name: of a kind that is known here, or of one whose handler is in another
program.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.client.function import Prepared
from holdfast.client.options import Options
from holdfast.client.registry import Kind, Registry, text
from holdfast.domain.job import NewJob
from holdfast.domain.retry import DEFAULT_RETRY, Retry

_MOST = 1_000
_Choices = tuple[tuple[str, Any], ...]


class Outside:
    """What is asked of one application from outside. `any_kind` takes kinds that it does not know, too."""

    def __init__(self, registry: Registry, *, any_kind: bool) -> None:
        self._registry = registry
        self._any_kind = any_kind
        self._models: dict[tuple[str, _Choices], tuple[Kind | None, tuple[Any, ...]]] = {}
        """All of a job but its kind and payload, by what was chosen: many jobs are asked for with the same choices."""

    def prepare(self, kind: str, payload: str, limit: int, choices: Mapping[str, Any]) -> Prepared:
        """Validate a job whose payload comes as JSON text that has been checked.

        `choices` are those of `using`, and `retry` or `max_attempts`. A kind that is known here validates its payload.
        Another is taken as it is if that is allowed, and refused otherwise.
        """
        known = self._registry.get(kind)
        if known is not None:
            payload = known.binder.check(payload, limit)
        if "unique" in choices or "debounce" in choices:
            return _prepared(self._kind(kind), payload, choices)
        chosen = tuple((name, value) for name, value in choices.items() if name != "key")
        made_for, model = self._models.get((kind, chosen), (None, None))
        if model is None or made_for is not known:
            model = _prepared(self._kind(kind), "", dict(chosen)).new[2:]
            if len(self._models) >= _MOST:
                self._models.clear()
            self._models[kind, chosen] = (known, model)
        new = NewJob._make((kind, payload, *model))
        return Prepared(new._replace(key=text(choices["key"], "key")) if "key" in choices else new)

    def _kind(self, name: str) -> Kind:
        known = self._registry.get(name)
        if known is not None or not self._any_kind:
            return self._registry[name]
        return Kind(text(name, "kind"), _elsewhere)


def _prepared(kind: Kind, payload: str, choices: Mapping[str, Any]) -> Prepared:
    options = dict(choices)
    retry: Retry | None = options.pop("retry", None)
    max_attempts: int | None = options.pop("max_attempts", None)
    chosen = Options().having(**options)
    new = chosen.new_job(kind, payload)
    if retry is not None or max_attempts is not None:
        policy = retry or replace(kind.retry, max_attempts=max_attempts or DEFAULT_RETRY.max_attempts)
        new = new._replace(retry=policy.spec, max_attempts=policy.max_attempts)
    return Prepared(new, chosen.connection, chosen.debounce)


def _elsewhere() -> None:
    """Stand for a handler that is not here."""
