"""Between a handler's parameters and a job's payload: validation by Pydantic when a job is enqueued and again when it
runs.

A handler with one Pydantic model as its only parameter stores that model's JSON as the payload; any other handler
stores an object of its parameters
by name. A parameter annotated `Context` (or called `ctx`, without annotation) is filled in by the worker and is no
part of the payload.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeGuard

import typing_extensions
from pydantic import VERSION, BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from holdfast.client.context import Context
from holdfast.client.shapes import whole_adapter
from holdfast.domain import codec
from holdfast.domain.errors import BadInput, BadPayload

_SUSPECT = re.compile(rb"\\u0000|[0-9]{19}")
"""A NUL, or digits enough for an integer of more than 64 bits."""
_ROOM = 24
"""Characters that an object of such an integer has at the least: `{"":` and `}` around it."""
_NAMES: dict[str, Any] = (
    {"by_alias": True, "by_name": True} if tuple(map(int, VERSION.split(".")[:2])) >= (2, 11) else {}
)
"""What is stored goes by the names of fields, whose aliases callers may use as well; Pydantic before 2.11 cannot."""
_WRITTEN: dict[str, Any] = {"warnings": False, "round_trip": True, "by_alias": False}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Binder:
    """The payload of one kind."""

    def __init__(self, kind: str, fn: Callable[..., Any]) -> None:
        self.kind = kind
        self._fn = fn
        self._signature = inspect.signature(fn)
        for parameter in self._signature.parameters.values():
            if parameter.kind not in _NAMED:
                msg = (
                    f"{kind}: a job's parameters need names; *args, **kwargs and positional-only ones cannot be stored."
                )
                raise BadInput(msg)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return hints_of(self._fn, self.kind)

    @cached_property
    def context(self) -> str | None:
        """The name of the parameter that wants the context."""
        return context_of(self._hints)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name in self._signature.parameters if name != self.context)

    @cached_property
    def _positional(self) -> int:
        parameters = self._signature.parameters
        return sum(parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in self._names)

    @cached_property
    def _model(self) -> type[BaseModel] | None:
        only = self._hints[self._names[0]] if len(self._names) == 1 else None
        return only if is_model(only) else None

    @cached_property
    def _scalar(self) -> bool:
        """Whether every parameter is text, an integer or a flag, so that its JSON alone tells if it can be kept."""
        return self._model is None and all(self._hints[name] in (int, str, bool) for name in self._names)

    @cached_property
    def _plain(self) -> bool:
        """Whether every parameter is read from the JSON that it is written as, whatever its value."""
        return self._model is None and all(_is_plain(self._hints[name]) for name in self._names)

    @cached_property
    def _reads(self) -> dict[str, Any]:
        return {} if self._plain else _NAMES

    @cached_property
    def _read(self) -> Callable[[str], Any]:
        read = self._adapter.validator.validate_json
        return partial(read, **self._reads) if self._reads else read

    def make_ready(self) -> None:
        """Make ready to read payloads, which takes long the first time; what is wrong with them, a job will tell."""
        with suppress(BadInput):
            _ = self._read

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        if self._model is not None:
            return self._adapted(self._model)
        fields = {
            name: self._hints[name]
            if self._signature.parameters[name].default is inspect.Parameter.empty
            else typing_extensions.NotRequired[self._hints[name]]
            for name in self._names
        }
        shape = typing_extensions.TypedDict(self.kind, fields)  # type: ignore[misc]
        shape.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
        return self._adapted(shape)

    def _adapted(self, shape: Any) -> TypeAdapter[Any]:
        try:
            return whole_adapter(shape)
        except (PydanticUserError, NameError) as error:
            reason = str(error).splitlines()[0].removesuffix(".")
            msg = f"{self.kind}: Pydantic cannot validate one of its parameters ({reason})."
            raise BadInput(msg) from error

    @cached_property
    def write(self) -> Callable[[tuple[Any, ...], int], str | None] | None:
        """Gives the payload of the most common kind of call, with the least around it; what gives None takes a closer
        look.
        """
        names, validate = self._names, self._adapter.validator.validate_python
        to_json, search, number = self._adapter.serializer.to_json, _SUSPECT.search, len(names)
        if not self._scalar or self._positional != number:
            return None

        def write(args: tuple[Any, ...], limit: int) -> str | None:
            if len(args) != number:
                return None
            try:
                text: bytes = to_json(validate(dict(zip(names, args))))  # noqa: B905 - they are as many
            except (ValidationError, PydanticSerializationError):
                return None
            if (len(text) >= _ROOM or b"\\" in text) and search(text):
                return None
            return None if len(text) > limit else text.decode()

        return write

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> str:
        """Validate a call of any kind and give its payload."""
        value = self._value(args, kwargs)
        if self._model is not None and isinstance(value, BaseModel):
            return self._readable(value, limit)
        adapter = self._adapter
        try:
            valid = adapter.validator.validate_python(value, **self._reads)
        except (ValidationError, RecursionError) as error:
            raise self.rejected(error) from error
        return self._dump(valid, limit) if self._plain else self._readable(valid, limit)

    def _readable(self, value: Any, limit: int) -> str:
        """Validate what is stored, not the object: a model may have been changed or built unchecked since it was
        validated, and it may write what it does not read.
        """
        text = self._dump(value, limit)
        try:
            self._adapter.validator.validate_json(text, **self._reads)
        except ValidationError as error:
            raise self.rejected(error) from error
        return text

    def _dump(self, valid: Any, limit: int) -> str:
        serializer = self._adapter.serializer
        try:
            if self._scalar and not _SUSPECT.search(text := serializer.to_json(valid)):
                return codec.sized(text, f"The payload of {self.kind}", limit)
            if codec.check(serializer.to_python(valid, **_WRITTEN), self.kind):
                text = serializer.to_json(valid, **_WRITTEN)
            else:
                written = serializer.to_python(valid, mode="json", **_WRITTEN)
                codec.check(written, self.kind)
                text = to_json(written)
        except (PydanticSerializationError, ValueError, RecursionError, TypeError) as error:
            raise codec.unserialisable(f"The payload of {self.kind}", error) from error
        return codec.sized(text, f"The payload of {self.kind}", limit)

    def _value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = self._names
        if len(args) == len(names) == self._positional and not kwargs:
            return args[0] if self._model is not None else dict(zip(names, args, strict=True))
        if self.context is not None:
            kept = [p for name, p in self._signature.parameters.items() if name != self.context]
            signature = self._signature.replace(parameters=kept)
        else:
            signature = self._signature
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            msg = f"{self.kind}: {error}; it takes ({', '.join(names)})."
            raise BadPayload(msg) from error
        return bound[names[0]] if self._model is not None else bound

    def check(self, payload: str, limit: int) -> str:
        """Validate a payload that comes as JSON text, and give it as it will be stored."""
        try:
            codec.sized(payload.encode(), f"The payload of {self.kind}", limit)
        except UnicodeEncodeError as error:
            raise codec.unserialisable(f"The payload of {self.kind}", error) from error
        try:
            valid = self._adapter.validator.validate_json(payload, **self._reads)
            return self._dump(valid, limit) if self._plain else self._readable(valid, limit)
        except (ValidationError, RecursionError) as error:
            raise self.rejected(error) from error

    def decode(self, payload: str) -> dict[str, Any]:
        """Validate a stored payload and give the handler's keyword arguments."""
        try:
            value = self._read(payload)
        except ValidationError as error:
            raise self.rejected(error) from error
        return value if self._model is None else {self._names[0]: value}

    def rejected(self, error: Exception) -> BadPayload:
        """Name the field that is wrong, without repeating its value: payloads may be private."""
        if not isinstance(error, ValidationError):
            return BadPayload(f"{self.kind}: the payload is nested too deep.")
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        parts = [f"field {'.'.join(map(str, p['loc'])) or '(payload)'!r}: {_complaint(p)}" for p in problems[:5]]
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""  # noqa: PLR2004
        return BadPayload(f"{self.kind}: {'; '.join(parts)}{more}.")


def context_of(hints: dict[str, Any]) -> str | None:
    """Find the parameter that wants the context."""
    return next((name for name, hint in hints.items() if _is_context(hint) or (name == "ctx" and hint is Any)), None)


def _is_context(hint: Any) -> bool:
    """Tell whether a parameter wants the context, or takes it where there is one: `ctx: Context | None = None`."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return hint is Context or (union and Context in typing.get_args(hint))


def takes_context(fn: Callable[..., Any]) -> bool:
    """Tell whether a function wants the context; if its annotations cannot be read yet, by the parameter's name."""
    try:
        return context_of(hints_of(fn)) is not None
    except BadInput:
        return "ctx" in inspect.signature(fn).parameters


def hints_of(fn: Callable[..., Any], called: str | None = None) -> dict[str, Any]:
    """Give the types of a function's parameters, by name; `Any` where it says none."""
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except (NameError, TypeError) as error:
        msg = f"{called or fn.__name__}: one of its annotations cannot be resolved ({error})."
        raise BadInput(msg) from error
    return {name: hints.get(name, Any) for name in inspect.signature(fn).parameters}


def _complaint(problem: ErrorDetails) -> str:
    """Give Pydantic's own words, except where they repeat what was sent."""
    return "Input has an unknown tag" if problem["type"] == "union_tag_invalid" else problem["msg"]


def is_model(hint: Any) -> TypeGuard[type[BaseModel]]:
    """Tell whether this is a Pydantic model."""
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _is_plain(hint: Any) -> bool:
    if typing.get_origin(hint) in (list, dict, typing.Union, types.UnionType):
        return all(_is_plain(part) for part in typing.get_args(hint))
    return hint in (Any, None, types.NoneType, str, int, float, bool, list, dict)


def mapping(payload: Any, kind: str) -> Any:
    """Take a payload that is given by its names: those of a mapping, or of a model's fields."""
    if isinstance(payload, BaseModel):
        return payload.model_dump(round_trip=True, warnings=False)
    if not isinstance(payload, Mapping):
        msg = f"The payload of {kind} is JSON text, a mapping or a model, not {type(payload).__name__}."
        raise BadPayload(msg)
    return dict(payload)
