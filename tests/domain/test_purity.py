"""The domain has no clock, no randomness and no I/O: what it needs of them it is given."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.domain

MODULES = sorted(Path(holdfast.domain.__file__).parent.rglob("*.py"))
FORBIDDEN = {
    "asyncio", "concurrent", "http", "io", "logging", "multiprocessing", "os", "pathlib", "pickle", "queue", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading",
    "time", "urllib",
}  # fmt: skip
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "uuid7", "urandom", "open", "input", "print", "getenv"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module or ""


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            yield function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_the_domain_asks_nobody_for_time_chance_or_data(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    names = set(imported(tree))
    assert not {name.partition(".")[0] for name in names} & FORBIDDEN
    assert not {name for name in names if name.startswith("holdfast.") and not name.startswith("holdfast.domain")}
    assert not set(called(tree)) & IMPURE_CALLS


def test_the_modules_of_the_domain_were_found() -> None:
    assert {"lifecycle", "job", "retry", "codec", "ids", "errors", "moments"} <= {path.stem for path in MODULES}
