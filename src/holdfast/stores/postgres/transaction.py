"""A handler's own transaction: what it writes and the completion of its job commit together, or neither does.

The connection is the handler's until it returns. It cannot commit by itself; the worker does, after it has written the
completion under the lease's guard in the same transaction.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.domain.errors import BadInput
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Move
from holdfast.port.shelter import SHELTER
from holdfast.stores.postgres.carrying import Steps, settle
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.settlement import Settlement, completable, completed, completing, completion
from holdfast.stores.postgres.trouble import translate

AsyncConnection = psycopg.AsyncConnection[Any]


class HandlerTransaction:
    """One attempt's transaction: `with` in a synchronous handler, `async with` in an asynchronous one."""

    def __init__(self, pool: Pool, now: Callable[[], Micros | None]) -> None:
        self._pool = pool
        self._now = now
        self._db: Connection | None = None
        self._adb: AsyncConnection | None = None
        self._block: Any = None

    @property
    def open(self) -> bool:
        """Whether there is something to commit or to roll back."""
        return self._block is not None

    def __enter__(self) -> Connection:
        if self._db is None:
            with SHELTER:
                self._db = self._pool.borrow()
                block = self._db.transaction()
                try:
                    block.__enter__()
                except psycopg.Error as error:
                    self.rollback()
                    raise translate(error, self._pool.address, sent=False) from error
                self._block = block
        return self._db

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.rollback()

    async def __aenter__(self) -> AsyncConnection:
        if self._adb is None:
            try:
                self._adb = await psycopg.AsyncConnection.connect(
                    self._pool.guest_conninfo, autocommit=True, prepare_threshold=None if self._pool.pooled else 5
                )
            except psycopg.Error as error:
                raise translate(error, self._pool.address, sent=False) from error
            block = self._adb.transaction()
            try:
                await block.__aenter__()
            except psycopg.Error as error:
                await self.arollback()
                raise translate(error, self._pool.address, sent=False) from error
            self._block = block
        return self._adb

    async def __aexit__(self, *error: object) -> None:
        if error[0] is not None:
            await self.arollback()

    def settle(self, move: Move) -> Answer:
        """Complete the job in the transaction and commit it; roll back if the guard does not hold."""
        if self._db is None:
            msg = "A transaction that was opened with `async with` is settled by awaiting."
            raise BadInput(msg)
        self._db.row_factory, self._db.cursor_factory = tuple_row, psycopg.Cursor  # the handler may have liked others
        try:
            answer = Settlement(self._db, self._pool.address.schema, self._now()).settle([move])[0]
            if answer is Answer.OK:
                self._block.__exit__(None, None, None)
                self._block = None
        except psycopg.Error as error:
            raise translate(error, self._pool.address, sent=True) from error
        finally:
            self.rollback()
        return answer

    async def asettle(self, move: Move) -> Answer:
        """Asynchronous twin of `settle`."""
        assert self._adb is not None
        self._adb.row_factory, self._adb.cursor_factory = tuple_row, psycopg.AsyncCursor
        schema = self._pool.address.schema
        try:
            answer = Answer.OK if await self._complete(move) else await self._run(settle(schema, move, self._now()))
            if answer is Answer.OK:
                await self._block.__aexit__(None, None, None)
                self._block = None
        except psycopg.Error as error:
            raise translate(error, self._pool.address, sent=True) from error
        finally:
            await self.arollback()
        return answer

    async def _complete(self, move: Move) -> bool:
        """Try the statement for the common ending."""
        assert self._adb is not None
        if not completable([move]):
            return False
        statement = completing(self._pool.address.schema, [move])
        cursor = await self._adb.execute(statement, completion([move], self._now()))
        return bool(completed([move], await cursor.fetchall()))

    async def _run(self, steps: Steps[Answer]) -> Answer:
        assert self._adb is not None
        try:
            batch = next(steps)
            while True:
                batch = steps.send([await (await self._adb.execute(*each)).fetchall() for each in batch])
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def rollback(self) -> None:
        """Undo what was not committed, and give the connection back."""
        if self._db is not None:
            db, block, self._db, self._block = self._db, self._block, None, None
            with suppress(Exception):  # the handler had the connection, and may have done anything to it
                if block is not None:
                    block.__exit__(_Undone, _Undone(), None)
            self._pool.give_back(db)

    async def arollback(self) -> None:
        """Asynchronous twin of `rollback`."""
        if self._adb is not None:
            db, block, self._adb, self._block = self._adb, self._block, None, None
            with suppress(Exception):
                if block is not None:
                    await block.__aexit__(_Undone, _Undone(), None)
            with suppress(psycopg.Error):
                await db.close()


class _Undone(Exception):
    """Tells psycopg that a block ends without a commit."""
