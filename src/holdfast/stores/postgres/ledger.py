"""Accounts that a transaction has locked: what is taken of them is reckoned here, and written in one statement."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.domain import accounts
from holdfast.domain.errors import InsufficientCredits
from holdfast.domain.job import Account, CreditEntry, JobRecord, NewJob
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move


class Ledger:
    """The accounts of some tenants, and the entries to be made. A tenant without an account is asked for nothing."""

    def __init__(self, rows: Iterable[Sequence[Any]] = ()) -> None:
        self._accounts = {account.tenant: account for account in (Account(*row) for row in rows)}
        self._entries: list[CreditEntry] = []

    def reserve(self, id_: str, new: NewJob) -> NewJob:
        """Set credits aside for a new job; raises `InsufficientCredits`."""
        account = self._accounts.get(new.tenant) if new.credits else None
        if account is None:
            return new
        [funded] = accounts.reserve([new], account)
        if funded.reserved:
            self._enter(CreditEntry(new.tenant, "reserve", id_, 1, None, 0, funded.reserved, 0, 0))
        return funded

    def take(
        self, move: Move, before: JobRecord, after: JobRecord, children: Iterable[tuple[str, NewJob]]
    ) -> list[tuple[str, NewJob]] | None:
        """Take what a move and its children cost, and give the children; nothing at all if there is not enough."""
        kept = self._accounts.copy(), len(self._entries)
        try:
            self._charge(move, before, after)
            return [(id_, self.reserve(id_, new)) for id_, new in children]
        except InsufficientCredits:
            self._accounts = kept[0]
            del self._entries[kept[1] :]
            return None

    def _charge(self, move: Move, before: JobRecord, after: JobRecord) -> None:
        account, change = self._accounts.get(before.tenant), accounts.charge(before, after)
        if account is None or change is None:
            return
        if not accounts.affords(account, change):
            raise InsufficientCredits
        verb, id_, generation = move.verb.value, after.id, after.generation
        spending = change.granted, change.reserved, change.spent
        self._enter(CreditEntry(after.tenant, verb, id_, generation, move.step, *spending, 0))

    def bring(self, job: JobRecord) -> None:
        """Take the credits in that come with a job from another store."""
        if change := accounts.brought(job):
            brought = change.granted, change.reserved, change.spent
            self._enter(CreditEntry(job.tenant, "adopt", job.id, job.generation, None, *brought, 0))

    def _enter(self, entry: CreditEntry) -> None:
        account = self._accounts[entry.tenant]
        self._accounts[entry.tenant] = account._replace(
            granted=account.granted + entry.granted,
            reserved=account.reserved + entry.reserved,
            spent=account.spent + entry.spent,
        )
        self._entries.append(entry)

    def statements(self, now: Micros | None) -> list[tuple[str, dict[str, Any]]]:
        """Give what writes the entries and changes the accounts, if anything is to be written."""
        if not self._entries:
            return []
        changes: dict[str, list[int]] = {}
        for entry in self._entries:
            change = changes.setdefault(entry.tenant, [0, 0, 0])
            change[0] += entry.reserved
            change[1] += entry.spent
            change[2] += entry.granted
        values = {
            "now": now,
            "changes": json.dumps(changes),
            "tenants": list(changes),
            "entries": [entry.tenant for entry in self._entries],
            "verbs": [entry.verb for entry in self._entries],
            "job_ids": [entry.job_id for entry in self._entries],
            "generations": [entry.generation for entry in self._entries],
            "steps": [entry.step for entry in self._entries],
            "granted": [entry.granted for entry in self._entries],
            "reserved": [entry.reserved for entry in self._entries],
            "spent": [entry.spent for entry in self._entries],
        }
        return [("book", values)]
