"""JSON in and out, with limits that are the same on every store.

A payload that passes here can be kept by every engine: no NaN or infinity, no NUL, no lone surrogate, integers of 64
bits, bounded depth, keys and size. Nothing else is ever used to serialise a job.
"""

import json
import re
from collections import deque
from enum import Enum
from hashlib import sha256
from math import isfinite
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from holdfast.domain.errors import BadPayload

ARTIFACT = '{"$artifact":'
"""Begins the text of a payload or result that lies outside the store; what follows says where."""
MAX_BYTES = 256 * 1024
MAX_RECORD = 1024 * 1024
"""The most that `max_payload` may allow in a record; a larger limit is that of an artifact."""
MAX_DEPTH = 32
MAX_KEYS = 1_000
MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
_REFERENCE = re.compile(
    r'\{"\$artifact":\{"name":"([0-9]{4}/[0-9]{2}/[0-9]{2}/[0-9a-f]{32}\.json)",'
    r'"bytes":([1-9][0-9]{0,14}),"sha256":"([0-9a-f]{64})"\}\}'
)
"""The one spelling of a reference. A name that leads anywhere else is no name of ours."""


class Reference(NamedTuple):
    """Where a text lies that is kept outside the store, and what it must be when it is read back."""

    name: str
    size: int
    """In bytes."""
    sha256: str

    @property
    def text(self) -> str:
        """What is stored instead."""
        return f'{ARTIFACT}{{"name":"{self.name}","bytes":{self.size},"sha256":"{self.sha256}"}}}}'


def check(value: Any, where: str, depth: int = 0) -> bool:  # noqa: C901, PLR0912
    """Refuse what some store could not keep; `where` names the place in the error.

    Gives false if a value is not one of JSON's own types: what it will be written as must then be checked as well.
    """
    match value:
        case None | bool():
            return True
        case Enum():
            check(value.value, where, depth)
            return False
        case str():
            if "\x00" in value:
                raise _refused(where, "holds a NUL character")
            return True
        case int():
            if not MIN_INT <= value <= MAX_INT:
                raise _refused(where, "is an integer of more than 64 bits")
            return True
        case float():
            if not isfinite(value):
                raise _refused(where, f"is {value}, which JSON cannot hold")
            return True
        case dict() | list() | tuple() | set() | frozenset() | deque():
            if depth >= MAX_DEPTH:
                raise _refused(where, f"is nested more than {MAX_DEPTH} levels deep")
            if isinstance(value, dict):
                return _check_object(value, where, depth)
            plain = isinstance(value, list)
            for index, item in enumerate(value):
                plain &= check(item, f"{where}[{index}]", depth + 1)
            return plain
        case _:
            return False


def _check_object(value: dict[Any, Any], where: str, depth: int) -> bool:
    if len(value) > MAX_KEYS:
        raise _refused(where, f"has more than {MAX_KEYS} keys")
    plain = True
    for key, item in value.items():
        if type(item) is not int or not MIN_INT <= item <= MAX_INT:
            plain &= check(item, f"{where}.{key}", depth + 1)
        if type(key) is not str:
            plain = False
        elif "\x00" in key:
            raise _refused(where, "has a key with a NUL character")
    return plain


def encode(value: Any, where: str, limit: int = MAX_BYTES) -> str:
    """Turn any value that Pydantic can serialise into JSON text."""
    if type(value) is int and MIN_INT <= value <= MAX_INT and len(number := str(value)) <= limit:
        return number
    try:
        if not check(value, where):
            value = to_jsonable_python(value, inf_nan_mode="constants")
            check(value, where)
        text = to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError, TypeError) as error:
        raise unserialisable(where, error) from error
    return sized(text, where, limit)


def sized(text: bytes, where: str, limit: int) -> str:
    """Refuse what is too large to keep."""
    if len(text) > limit:
        raise too_large(where, len(text), limit)
    return text.decode()


def too_large(where: str, size: int, limit: int) -> BadPayload:
    """Say that something is larger than its limit, and what to do instead."""
    elsewhere = "store it elsewhere and pass a reference"
    if limit <= MAX_RECORD:
        elsewhere += ", or let Holdfast do so: pass artifacts=URL"
    return BadPayload(f"{where} is {size:,} bytes of JSON, and at most {limit:,} are kept; {elsewhere}.")


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
    """Tell whether two JSON texts mean the same value; those outside the store do if their texts are the same."""
    if left == right:
        return True
    if left.startswith(ARTIFACT) or right.startswith(ARTIFACT):
        ours, theirs = reference(left), reference(right)
        if ours or theirs:
            known = ours.sha256 if ours else digest(left.encode())
            return known == (theirs.sha256 if theirs else digest(right.encode()))
    return _canonical(left) == _canonical(right)


def reference(text: str) -> Reference | None:
    """Read a reference to what lies outside the store; None if the text is anything else."""
    found = _REFERENCE.fullmatch(text) if text.startswith(ARTIFACT) else None
    return None if found is None else Reference(found[1], int(found[2]), found[3])


def digest(data: bytes) -> str:
    """Give the fingerprint that a reference keeps."""
    return sha256(data).hexdigest()


def _canonical(text: str) -> str:
    """Give one spelling for all texts of one value; `true` and `1` stay apart."""
    return json.dumps(from_json(text), sort_keys=True)


def _refused(where: str, what: str) -> BadPayload:
    return BadPayload(f"{where[:200]} {what}.")
