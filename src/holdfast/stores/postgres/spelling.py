"""Our statements name their parameters as psycopg does; other drivers spell them otherwise."""

import re
from typing import Any

_PARAMETER = re.compile(r"%\((\w+)\)s")


def colons(statement: str) -> str:
    """Spell parameters as SQLAlchemy does, whatever driver is under it."""
    return _PARAMETER.sub(r":\1", statement.replace(":", r"\:"))


def numbered(statement: str, values: dict[str, Any]) -> tuple[str, list[Any]]:
    """Spell parameters as asyncpg does, and put their values in order."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    places = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _PARAMETER.sub(lambda match: places[match[1]], statement), [values[name] for name in names]
