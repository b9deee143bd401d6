"""A statement that is prepared by hand and sent with nothing around it: the shortest way to the server.

Each `execute` of psycopg makes a cursor, reads the statement and looks up the type of every parameter. For a statement
as short as a lone enqueue that is half of what it costs this process.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, LiteralString

from psycopg.errors import DataError, InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus

from holdfast.stores.postgres.pool import Connection, Ours

_NAMED = re.compile(r"%\((\w+)\)s")


class Swift:
    """One statement, which gives one row of texts."""

    def __init__(self, name: str, text: LiteralString) -> None:
        self._name = name.encode()
        self._text = text
        self._order = tuple(dict.fromkeys(_NAMED.findall(text)))
        places = {name: f"${place}" for place, name in enumerate(self._order, 1)}
        self._numbered = _NAMED.sub(lambda found: places[found[1]], text).encode()

    def row(self, db: Connection, values: Mapping[str, Any]) -> Sequence[Any]:
        """Carry it out; prepared, if the connection may have something prepared."""
        if not isinstance(db, Ours) or db.prepare_threshold is None:
            return db.execute(self._text, values).fetchone() or ()
        wire = db.pgconn
        if self._name not in db.at_hand:
            wire.send_prepare(self._name, self._numbered)
            self._answer(db, ExecStatus.COMMAND_OK)
            db.at_hand.add(self._name)
        wire.send_query_prepared(self._name, _written(map(values.__getitem__, self._order)))
        try:
            answer = self._answer(db, ExecStatus.TUPLES_OK)
        except InvalidSqlStatementName:
            # When a transaction is rolled back, psycopg has the server forget all that was prepared.
            db.at_hand.discard(self._name)
            return db.execute(self._text, values).fetchone() or ()
        return [answer.get_value(0, column) for column in range(answer.nfields)]

    def _answer(self, db: Connection, expected: ExecStatus) -> Any:
        """Take what the server says. Only its last word counts: a backend that is ended between a statement and its
        commit has told the row before it tells that.
        """
        answers = db.wait(execute(db.pgconn))
        for answer in answers:
            if answer.status != expected:
                raise error_from_result(answer)
        return answers[0]


def _written(values: Iterable[str | int | None]) -> list[bytes | None]:
    """Write parameters as texts, each of which would end at its first NUL: so there must be none."""
    texts = [
        value if value is None else value.encode() if type(value) is str else str(value).encode() for value in values
    ]
    if b"\x00" in b"".join(filter(None, texts)):
        msg = "PostgreSQL's texts cannot hold a NUL."
        raise DataError(msg)
    return texts
