"""JSON in and out, with limits that are the same on every store.

A payload that passes here can be kept by every engine: no NaN or infinity, no NUL, no lone surrogate, integers of 64
bits, bounded depth, keys
and size. Nothing else is ever used to serialise a job.
"""

import json
from math import isfinite
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from holdfast.domain.errors import BadPayload

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_KEYS = 1_000
MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
_SCALARS = frozenset({str, int, float, bool, type(None)})


def check(value: Any, where: str, depth: int = 0) -> None:  # noqa: C901, PLR0912
    """Refuse what some store could not keep; `where` names the place in the error."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        if kind is str and "\x00" in value:
            raise _refused(where, "holds a NUL character")
    elif isinstance(value, int):
        if not MIN_INT <= value <= MAX_INT:
            raise _refused(where, "is an integer of more than 64 bits")
    elif isinstance(value, float):
        if not isfinite(value):
            raise _refused(where, f"is {value}, which JSON cannot hold")
    elif isinstance(value, str):
        check(str(value), where, depth)
    elif isinstance(value, dict):
        if depth >= MAX_DEPTH:
            raise _refused(where, f"is nested more than {MAX_DEPTH} levels deep")
        if len(value) > MAX_KEYS:
            raise _refused(where, f"has more than {MAX_KEYS} keys")
        for key, item in value.items():
            name = f"{where}.{key}" if depth < MAX_DEPTH else where
            if type(item) not in _SCALARS or not (type(item) is int and -MAX_INT < item < MAX_INT):
                check(item, name, depth + 1)
            if isinstance(key, str) and "\x00" in key:
                raise _refused(where, "has a key with a NUL character")
    elif isinstance(value, list | tuple | set | frozenset):
        if depth >= MAX_DEPTH:
            raise _refused(where, f"is nested more than {MAX_DEPTH} levels deep")
        for index, item in enumerate(value):
            check(item, f"{where}[{index}]" if type(item) not in _SCALARS else where, depth + 1)


def encode(value: Any, where: str, limit: int = MAX_BYTES) -> str:
    """Turn any value that Pydantic can serialise into JSON text."""
    try:
        plain = to_jsonable_python(value, inf_nan_mode="constants")
        check(plain, where)
        text = to_json(plain)
    except (PydanticSerializationError, ValueError, RecursionError, TypeError) as error:
        raise unserialisable(where, error) from error
    return sized(text, where, limit)


def sized(text: bytes, where: str, limit: int) -> str:
    """Refuse what is too large to keep in a record."""
    if len(text) > limit:
        size = f"{len(text):,} bytes of JSON, and at most {limit:,} are kept"
        msg = f"{where} is {size}; store it elsewhere and pass a reference."
        raise BadPayload(msg)
    return text.decode()


def unserialisable(where: str, error: Exception) -> BadPayload:
    """Put a serialiser's complaint into one sentence."""
    if isinstance(error, BadPayload):
        return error
    if isinstance(error, UnicodeDecodeError):
        return _refused(where, "holds bytes that are not text")
    if "surrogate" in str(error) or isinstance(error, UnicodeError):
        return _refused(where, "holds a lone surrogate, which is not valid text")
    if isinstance(error, RecursionError) or "depth" in str(error) or "ircular" in str(error):
        return _refused(where, f"is nested more than {MAX_DEPTH} levels deep")
    return _refused(where, f"cannot be written as JSON ({str(error)[:200]})")


def decode(text: str) -> Any:
    """Read JSON text back."""
    return from_json(text)


def same(left: str, right: str) -> bool:
    """Tell whether two JSON texts mean the same value."""
    return left == right or _canonical(left) == _canonical(right)


def _canonical(text: str) -> str:
    """Give one spelling for all texts of one value; `true` and `1` stay apart."""
    return json.dumps(from_json(text), sort_keys=True)


def _refused(where: str, what: str) -> BadPayload:
    return BadPayload(f"{where[:200]} {what}.")
