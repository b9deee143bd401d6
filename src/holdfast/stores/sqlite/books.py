"""The books beside the jobs: accounts and their entries, schedules, events and the sinks they go to."""

import json
from collections.abc import Sequence

from holdfast.domain import accounts
from holdfast.domain.job import Account, CreditEntry, NewJob
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move
from holdfast.port.store import EventRecord, ScheduleRecord
from holdfast.stores.sqlite.guests import Connection, OwnConnection
from holdfast.stores.sqlite.sql import SQL


class Purse:
    """The accounts that something is paid from, as they stand with all that it has taken of them so far."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._accounts: dict[str, Account | None] = {}

    def account(self, tenant: str) -> Account | None:
        """Give a tenant's account."""
        if tenant not in self._accounts:
            self._accounts[tenant] = account(self._db, tenant)
        return self._accounts[tenant]

    def take(self, tenant: str, change: accounts.Charge) -> bool:
        """Take what a change asks for; false if the account does not hold it."""
        found = self.account(tenant)
        if found is None:
            return True
        if not accounts.affords(found, change):
            return False
        granted, reserved, spent = change.granted, change.reserved, change.spent
        self._accounts[tenant] = Account(
            tenant, found.granted + granted, found.reserved + reserved, found.spent + spent
        )
        return True

    def fund(self, new: NewJob) -> NewJob:
        """Set credits aside for a new job; raises `InsufficientCredits`."""
        found = self.account(new.tenant) if new.credits else None
        if found is None:
            return new
        [funded] = accounts.reserve([new], found)
        self._accounts[new.tenant] = found._replace(reserved=found.reserved + funded.reserved)
        return funded


def enter(db: Connection, entries: Sequence[CreditEntry]) -> None:
    """Write entries, which change the accounts; those of tenants without an account are left out."""
    db.executemany(SQL["enter"], entries)


def account(db: Connection, tenant: str) -> Account | None:
    """Read a tenant's account."""
    row = db.execute(SQL["account"], (tenant,)).fetchone()
    return None if row is None else Account(*row)


def all_accounts(db: Connection) -> list[Account]:
    """List all accounts, by tenant."""
    return [Account(*row) for row in db.execute(SQL["accounts"])]


def entries(db: Connection, tenant: str, limit: int) -> list[CreditEntry]:
    """List the changes of an account, newest first."""
    return [CreditEntry(*row) for row in db.execute(SQL["entries"], (tenant, limit))]


def grant(db: Connection, tenant: str, amount: int, id_: str, now: Micros) -> Account | None:
    """Add credits to a tenant's account; none is given if it does not hold what is to be taken back."""
    before = account(db, tenant) or Account(tenant, 0, 0, 0)
    if db.execute(SQL["granted"], (tenant, id_)).fetchone() is not None:
        return before
    if amount + before.available < 0:
        return None
    db.execute(SQL["open_account"], (tenant,))
    enter(db, [CreditEntry(tenant, "grant", None, 0, id_, amount, 0, 0, now)])
    return account(db, tenant)


def schedules(db: Connection) -> list[ScheduleRecord]:
    """List the stored schedules, by name."""
    found = [ScheduleRecord(*row) for row in db.execute(SQL["schedules"])]
    return [schedule._replace(paused=bool(schedule.paused)) for schedule in found]


def save_schedule(db: OwnConnection, schedule: ScheduleRecord, seen: int | None) -> bool:
    """Write a schedule that has not changed."""
    values = (schedule.name, schedule.spec, schedule.next_at, schedule.last_at, schedule.paused)
    if seen is None:
        db.execute(SQL["add_schedule"], values)
    else:
        db.execute(SQL["change_schedule"], (*values, seen))
    return bool(db.changes())


def tell(db: Connection, moves: Sequence[Move], now: Micros) -> None:
    """Write the events of moves, in their order."""
    told = [(event.id, move.id, event.name, event.body) for move in moves for event in move.events]
    db.execute(SQL["tell"], (json.dumps(told), now))


def events(db: Connection, after: int, limit: int) -> list[EventRecord]:
    """List events from behind a position."""
    return [EventRecord(*row) for row in db.execute(SQL["events"], (after, limit))]
