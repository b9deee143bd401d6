"""Tenants' credits: an item for each account, and one for each change of it."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from holdfast.domain.accounts import Charge
from holdfast.domain.job import Account, CreditEntry, JobRecord
from holdfast.domain.moments import Micros
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.records import Part, absent, put
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_ACCOUNTS = "accounts"
_NUMBERS = count()


class Accounts:
    """The accounts of a table."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def read(self, tenants: Iterable[str]) -> dict[str, Account]:
        """Read accounts as they are now; tenants without one are left out."""
        found = self._wire.get_all([_place(tenant) for tenant in dict.fromkeys(tenants)])
        return {account.tenant: account for account in map(_account, found.values())}

    def all(self) -> list[Account]:
        """List all accounts, by tenant."""
        return sorted(_account(item) for item in self._wire.walk(_ACCOUNTS))

    def entries(self, tenant: str, limit: int) -> list[CreditEntry]:
        """List the changes of an account, newest first."""
        walk = self._wire.walk(_entries(tenant), newest=True, limit=min(limit, 1_000))
        return [_entry(item) for _, item in zip(range(limit), walk, strict=False)]

    def grant(self, tenant: str, amount: int, id_: str, now: Micros) -> Account | None:
        """Add credits, or take some back; a grant of the same id counts once."""
        once = Place(items.short(f"grants#{tenant}"), items.short(f"grant#{id_}"))
        while True:
            op = op_token()
            counted = self._wire.get(once) is not None
            account = self.read([tenant]).get(tenant)
            before = account or Account(tenant, 0, 0, 0)
            if counted:
                return before
            if amount + before.available < 0:
                return None
            entry = CreditEntry(tenant, "grant", None, 0, id_, amount, 0, 0, now)
            parts = [absent(once.key | items.attributes({"op_token": op})), self._granted(account, tenant, amount)]
            try:
                self._wire.transact([*parts, put(_entry_item(entry))], op)
            except Failed:
                continue  # another change came first: look again
            return self.read([tenant])[tenant]

    def _granted(self, account: Account | None, tenant: str, amount: int) -> dict[str, Any]:
        if account is None:
            values = {"tenant": tenant, "granted": amount, "reserved": 0, "spent": 0, "available": amount}
            return absent(_place(tenant).key | items.attributes(values))
        return _add(tenant, {"granted": amount, "available": amount}, needs=max(-amount, 0))

    def charge(self, tenant: str, change: Charge) -> Part:
        """Change an account by what a move takes of it, if it still holds as much."""
        taken = change.reserved + change.spent - change.granted
        return Part(f"account {tenant}", _add(tenant, {**change._asdict(), "available": -taken}, needs=max(taken, 0)))

    def bring(self, tenant: str, change: Charge, account: Account | None) -> Part:
        """Change an account by what a job brings along; open it, if there is none."""
        if account is not None:
            return self.charge(tenant, change)
        values = {**change._asdict(), "tenant": tenant}
        values["available"] = change.granted - change.reserved - change.spent
        return Part(f"account {tenant}", absent(_place(tenant).key | items.attributes(values)))

    def entry(self, job: JobRecord, verb: str, step: str | None, change: Charge, now: Micros) -> Part:
        """Write down a change that comes with a job."""
        entry = CreditEntry(job.tenant, verb, job.id, job.generation, step, *_changed(change), now)
        return Part("entry", put(_entry_item(entry)))


def _add(tenant: str, change: dict[str, int], *, needs: int) -> dict[str, Any]:
    """Add to the numbers of an account that is there, and has this much to spare."""
    names = {f"#{name}": name for name in change}
    values = {f":{name}": items.wire(number) for name, number in change.items()}
    condition = "attribute_exists(PK)"
    if needs:
        condition, values[":needs"] = "#available >= :needs", items.wire(needs)
    return {
        "Update": {
            "Key": _place(tenant).key,
            "UpdateExpression": "ADD " + ", ".join(f"#{name} :{name}" for name in change),
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }
    }


def _changed(change: Charge) -> tuple[int, int, int]:
    return change.granted, change.reserved, change.spent


def _place(tenant: str) -> Place:
    return Place(_ACCOUNTS, items.short(f"tenant#{tenant}"))


def _entries(tenant: str) -> str:
    return items.short(f"entries#{tenant}")


def _account(item: Item) -> Account:
    values = items.plain(item)
    return Account(*(values[name] for name in Account._fields))


def _entry_item(entry: CreditEntry) -> Item:
    """Entries lie by time; those of one instant in the order this process wrote them."""
    place = Place(_entries(entry.tenant), f"{entry.at:020d}#{next(_NUMBERS):012d}#{entry.job_id}#{entry.verb}")
    return place.key | items.attributes(entry._asdict())


def _entry(item: Item) -> CreditEntry:
    return CreditEntry(**items.fields(item, CreditEntry._fields))
