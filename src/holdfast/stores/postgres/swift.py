"""A statement that is prepared by hand and sent with nothing around it: the shortest way to the server.

Each `execute` of psycopg makes a cursor, reads the statement and looks up the type of every parameter. For a lone
enqueue that is half of what it costs this process, and for the claim of a job that comes to an idle worker a tenth of
the time until it starts.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, LiteralString, NamedTuple

from psycopg.errors import DataError, InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from holdfast.stores.postgres import sql
from holdfast.stores.postgres.pool import Connection, Ours

_Written = list[bytes | None]
_NAMED = re.compile(r"%\((\w+)\)s")
_NUMBERS = frozenset((20, 21, 23))
"""PostgreSQL's numbers for its types of whole numbers."""
_NUL = "PostgreSQL's texts cannot hold a NUL."


class Swift:
    """One statement that gives rows of texts and whole numbers."""

    def __init__(self, name: str, text: LiteralString) -> None:
        self._name = name.encode()
        self._text = text
        self._order = tuple(dict.fromkeys(_NAMED.findall(text)))
        places = {name: f"${place}" for place, name in enumerate(self._order, 1)}
        self._numbered = _NAMED.sub(lambda found: places[found[1]], text).encode()

    def row(self, db: Connection, values: Mapping[str, Any]) -> Sequence[Any]:
        """Carry it out; give its one row, as texts."""
        answer = self.asked(db, self._write(values))
        if answer is None:
            return db.execute(self._text, values).fetchone() or ()
        return [answer.get_value(0, column) for column in range(answer.nfields)]

    def rows(self, db: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Carry it out; give its rows, which should be few: psycopg reads many faster."""
        answer = self.asked(db, self._write(values))
        return sql.ask(db, self._text, values) if answer is None else read(answer)

    def loaded(self, values: Mapping[str, Any], *late: str) -> "Loaded":
        """Write its parameters but some, which are to be known when it is sent."""
        written = self._write({**values, **dict.fromkeys(late)})
        return Loaded(self, values, late, written, tuple(map(self._order.index, late)))

    def _write(self, values: Mapping[str, Any]) -> _Written:
        return _written(map(values.__getitem__, self._order))

    def asked(self, db: Connection, written: _Written) -> Any:
        """Carry it out, if the connection may have something prepared, and has."""
        if self._name not in getattr(db, "at_hand", ()) and not self._prepared(db):
            return None
        db.pgconn.send_query_prepared(self._name, written)
        try:
            return self._answer(db, ExecStatus.TUPLES_OK)
        except InvalidSqlStatementName:
            # When a transaction is rolled back, psycopg has the server forget all that was prepared.
            assert isinstance(db, Ours)
            db.at_hand.discard(self._name)
            return None

    def _prepared(self, db: Connection) -> bool:
        """Prepare it; false if nothing may be prepared."""
        if not isinstance(db, Ours) or db.prepare_threshold is None:
            return False
        db.pgconn.send_prepare(self._name, self._numbered)
        self._answer(db, ExecStatus.COMMAND_OK)
        db.at_hand.add(self._name)
        return True

    def _answer(self, db: Connection, expected: ExecStatus) -> Any:
        """Take what the server says. Only its last word counts: a backend that is ended between a statement and its
        commit has told the row before it tells that.
        """
        answers = db.wait(execute(db.pgconn))
        for answer in answers:
            if answer.status != expected:
                raise error_from_result(answer)
        return answers[0]


class Loaded(NamedTuple):
    """A statement whose parameters are written, all but some texts."""

    swift: Swift
    values: Mapping[str, Any]
    late: tuple[str, ...]
    written: _Written
    places: tuple[int, ...]

    def value(self, db: Connection, *texts: str) -> Any:
        """Carry it out with these texts; give the first value of its one row, as a text."""
        answer = self.asked(db, *texts)
        return answer.get_value(0, 0) if answer is not None else self.swift.row(db, self._with(texts))[0]

    def rows(self, db: Connection, *texts: str) -> list[tuple[Any, ...]]:
        """Carry it out with these texts; give its rows."""
        answer = self.asked(db, *texts)
        return read(answer) if answer is not None else self.swift.rows(db, self._with(texts))

    def asked(self, db: Connection, *texts: str) -> Any:
        """Carry it out with these texts, if the connection may have something prepared, and has."""
        written = self.written.copy()
        for place, text in zip(self.places, texts, strict=True):
            if "\x00" in text:
                raise DataError(_NUL)
            written[place] = text.encode()
        return self.swift.asked(db, written)

    def _with(self, texts: tuple[str, ...]) -> Mapping[str, Any]:
        return {**self.values, **dict(zip(self.late, texts, strict=True))}


def read(answer: PGresult) -> list[tuple[Any, ...]]:
    """Read the rows of an answer."""
    told, columns = answer.get_value, range(answer.nfields)
    reads = [int if answer.ftype(column) in _NUMBERS else bytes.decode for column in columns]
    return [
        tuple([None if (value := told(row, column)) is None else reads[column](value) for column in columns])
        for row in range(answer.ntuples)
    ]


@cache
def swiftly(text: LiteralString) -> Swift:
    """Make a statement ready that nobody has named."""
    return Swift(f"holdfast_{zlib.crc32(text.encode()):08x}", text)


def _written(values: Iterable[str | int | None]) -> _Written:
    """Write parameters as texts, each of which would end at its first NUL: so there must be none."""
    texts = [
        value if value is None else value.encode() if type(value) is str else str(value).encode() for value in values
    ]
    if b"\x00" in b"".join(filter(None, texts)):
        raise DataError(_NUL)
    return texts
