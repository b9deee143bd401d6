"""SQLite does as the reference does, whatever it is asked."""

from itertools import count
from pathlib import Path

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.machine import compare


def test_sqlite_does_as_the_reference_does(tmp_path: Path) -> None:
    numbers = count()
    compare(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/{next(numbers)}.db", clock))
