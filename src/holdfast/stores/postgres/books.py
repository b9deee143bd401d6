"""What is kept beside the jobs: credits, schedules, and the events that were told of moves."""

import psycopg

from holdfast.domain.job import Account, CreditEntry
from holdfast.domain.moments import Micros
from holdfast.port.store import EventRecord, ScheduleRecord
from holdfast.stores.postgres import sql
from holdfast.stores.postgres.pool import Connection


def grant(db: Connection, schema: str, given: tuple[str, int, str], now: Micros | None) -> Account | None:
    """Add credits to an account, once for each id; nothing changes if it does not hold what is to be taken back."""
    tenant, amount, id_ = given
    values = {"tenant": tenant, "amount": amount, "id": id_, "now": now}
    with db.transaction():
        account = Account(*db.execute(sql.statement(schema, "open_account"), values).fetchone())  # type: ignore[misc]
        if db.execute(sql.statement(schema, "granted"), values).fetchone():
            return account
        if amount + account.available < 0:
            raise psycopg.Rollback
        db.execute(sql.statement(schema, "grant"), values)
        return account._replace(granted=account.granted + amount)
    return None


def account(db: Connection, schema: str, tenant: str) -> Account | None:
    """Read an account."""
    row = db.execute(sql.statement(schema, "account"), {"tenant": tenant}).fetchone()
    return row and Account(*row)


def accounts(db: Connection, schema: str) -> list[Account]:
    """List all accounts."""
    return [Account(*row) for row in db.execute(sql.statement(schema, "accounts"))]


def entries(db: Connection, schema: str, tenant: str, limit: int) -> list[CreditEntry]:
    """List the changes of an account, newest first."""
    found = db.execute(sql.statement(schema, "entries"), {"tenant": tenant, "limit": limit})
    return [CreditEntry(*row) for row in found]


def schedules(db: Connection, schema: str) -> list[ScheduleRecord]:
    """List the stored schedules."""
    return [ScheduleRecord(*row) for row in db.execute(sql.statement(schema, "schedules"))]


def save_schedule(db: Connection, schema: str, schedule: ScheduleRecord, seen: int | None) -> bool:
    """Write a schedule that has not changed."""
    statement = sql.statement(schema, "add_schedule" if seen is None else "change_schedule")
    return db.execute(statement, {**schedule._asdict(), "seen": seen}).fetchone() is not None


def remove_schedule(db: Connection, schema: str, name: str) -> bool:
    """Forget a schedule."""
    return db.execute(sql.statement(schema, "remove_schedule"), {"name": name}).fetchone() is not None


def events(db: Connection, schema: str, after: int, limit: int) -> list[EventRecord]:
    """List events from behind a position, those included that wait in the outbox; one trip, if none does."""
    listing = sql.statement(schema, "events"), {"after": after, "limit": limit}
    with db.pipeline():
        waiting = db.execute(sql.statement(schema, "outbox_filled"))
        listed = db.execute(*listing)
    if waiting.fetchone():
        _gather(db, schema, limit)
        listed = db.execute(*listing)
    return [EventRecord(*row) for row in listed]


def trim(db: Connection, schema: str, limit: int) -> int:
    """Remove events that every sink has had."""
    if db.execute(sql.statement(schema, "outbox_filled")).fetchone():
        _gather(db, schema, limit)
    return db.execute(sql.statement(schema, "trim"), {"limit": limit}).rowcount


def _gather(db: Connection, schema: str, limit: int) -> None:
    """Give the oldest events of the outbox their positions; one at a time does."""
    with db.transaction(), db.pipeline():
        db.execute(sql.statement(schema, "lock_tail"))
        db.execute(sql.statement(schema, "gather"), {"limit": limit})
