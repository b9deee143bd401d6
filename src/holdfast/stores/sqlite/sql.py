"""The statements, by name."""

from holdfast.domain.job import Flow
from holdfast.stores import statements

_FILES = ("statements.sql", "books.sql", "adoption.sql", "pages.sql", "turns.sql")
_PARTS = ("walk", "tellings", "telling", "columns", "claimed_columns", "next_columns")
"""What other statements are made of; each may contain those behind it."""
_RAW = {name: text for file in _FILES for name, text in statements.load("holdfast.stores.sqlite", file).items()}


def _written(text: str, shape: str = "") -> str:
    lane = _RAW[f"lane_{shape}"] if shape else ""
    group = f"'$[{Flow._fields.index('group')}]'"
    parts = {"lane": lane, "group": group, **{name: _RAW[name] for name in _PARTS}}
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


SQL = {name: _written(text) for name, text in _RAW.items() if "{lane}" not in text} | {
    f"{name}_{shape}": _written(text, shape) for name, text in _RAW.items() if "{lane}" in text for shape in "tk"
}
"""Statements about lanes end in the shape of these."""
