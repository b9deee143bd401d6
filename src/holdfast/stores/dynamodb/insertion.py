"""Storing jobs: each group in one transaction with its keys and credits.

Plain jobs are written without a look: their pointers tell if an id is taken. So are jobs with keys that are likely to
be new; one alone, where it is a single item, is put down first and takes its key then (`proofs`). If something is there
after all, and for credits and steps, a group is decided on what is there now, and written under the condition that it
still is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.domain import accounts as credit
from holdfast.domain import lifecycle
from holdfast.domain.errors import InsufficientCredits, StoreError, StoreUnavailable
from holdfast.domain.job import Account, JobRecord, NewJob, State, StepRecord
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, InsertGroup, Refusal
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.accounts import Accounts
from holdfast.stores.dynamodb.bundles import Bundles, Entry, fits
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.contract import LONGEST_DELAY
from holdfast.stores.dynamodb.items import Item, Key, Place, beside
from holdfast.stores.dynamodb.past import step_item
from holdfast.stores.dynamodb.proofs import UNPROVED, marked
from holdfast.stores.dynamodb.records import PARTS, Part, Records, put
from holdfast.stores.dynamodb.wire import Failed, TooLarge, Wire, op_token

_TRIES = 50
_DOUBTS = 32
"""A look costs a read unit, and a try for a taken key as much as forty: so one key in forty makes it worth looking."""


class _Group(NamedTuple):
    """What a group comes to, decided on what was there."""

    answers: list[Inserted]
    fresh: dict[str, tuple[JobRecord, NewJob]]
    core: list[Part]


class Insertion:
    """How jobs enter a table."""

    def __init__(
        self, wire: Wire, records: Records, accounts: Accounts, bundles: Bundles, clock: Callable[[], Micros]
    ) -> None:
        self._wire = wire
        self._records = records
        self._accounts = accounts
        self._bundles = bundles
        self._clock = clock
        self._doubts = 0
        """How many keys are looked for before they are tried, because one was taken a while ago."""

    def store(self, groups: Sequence[InsertGroup], now: Micros, changes: Changes) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all."""
        ids = [id_ for group in groups for id_, _ in group]
        if all(plain(new) for group in groups for _, new in group) and len(set(ids)) == len(ids):
            return self._store_plain(groups, now, changes)
        return [self._store_one(group, now, changes) for group in groups]

    def _store_one(self, group: InsertGroup, now: Micros, changes: Changes) -> list[Inserted] | Refusal:
        """Store a group: without a look, if all that it needs is likely to be free."""
        if not likely_new(group):
            return self._store_group(group, now, changes)
        if len(group) == 1 and (entry := self._alone(*group[0], now)) is not None:
            return self._store_keyed(entry, group, now, changes)
        [answer] = self._store_plain([group], now, changes)
        return answer

    def _alone(self, id_: str, new: NewJob, now: Micros) -> Part | None:
        """Give the item of a job that may take its key behind it: one whose key is its own for as long as it is kept,
        and that is called for at once, which removes the mark.
        """
        job = lifecycle.create(id_, new, now)
        soon = job.state is State.QUEUED and job.available_at - now <= LONGEST_DELAY
        if not self._records.layout.proves_keys or new.key is None or new.key_ttl is not None or not soon:
            return None
        first, *more = self._records.enter(job)
        return None if more else first

    def _store_keyed(self, entry: Part, group: InsertGroup, now: Micros, changes: Changes) -> list[Inserted] | Refusal:
        """Store a job, and take its key then; if the key is taken, the job is taken back and the group is decided."""
        [(id_, new)] = group
        job, proofs, since = lifecycle.create(id_, new, now), self._records.proofs, now
        place = items.dedup(new.tenant, new.key or "")
        if self._doubts and self._wire.get(place) is not None:
            self._doubts = _DOUBTS
            return self._store_group(group, now, changes)
        try:
            put_one(self._wire, entry._replace(request=marked(entry.request)))
        except TooLarge:
            return self._store_group(group, now, changes)
        except Failed as failed:
            if UNPROVED not in (failed.parts[0][1] or {}):
                return self._store_group(group, now, changes)
            since = 0  # it was put down before, and there is no telling how long it stays
        try:
            put_one(self._wire, taking(place, self._records.layout.place(job), job, None, None))
        except Failed as failed:
            if (failed.parts[0][1] or {}).get("job_id") != items.wire(id_):
                self._doubts = _DOUBTS
                proofs.take_back(id_)
            return self._store_group(group, now, changes)
        self._doubts = max(self._doubts - 1, 0)
        if not proofs.stands(id_, since, self._clock):
            return self._store_group(group, now, changes)
        changes.tell(None, job)
        return [Inserted(id_, new, now)]

    def _store_plain(
        self, groups: Sequence[InsertGroup], now: Micros, changes: Changes
    ) -> list[list[Inserted] | Refusal]:
        """Store groups without a look: several small ones in one transaction, if nothing of them is there yet."""
        answers: dict[int, list[Inserted] | Refusal] = {}
        shares: list[list[tuple[int, Entry]]] = [[]]
        for number, group in enumerate(groups):
            entry = [part for id_, new in group for part in self._unseen(lifecycle.create(id_, new, now), new, now)]
            together = [part for _, parts in shares[-1] for part in parts] + entry
            if not fits(together):
                shares.append([])
            shares[-1].append((number, entry))
        for share in shares:
            numbers = [number for number, _ in share]
            parts = [part for _, entry in share for part in entry]
            if self._written(parts):
                for number in numbers:
                    answers[number] = [Inserted(id_, new, now) for id_, new in groups[number]]
                    for id_, new in groups[number]:
                        changes.tell(None, lifecycle.create(id_, new, now))
            else:
                answers |= {number: self._store_group(groups[number], now, changes) for number in numbers}
        return [answers[number] for number in range(len(groups))]

    def _unseen(self, job: JobRecord, new: NewJob, now: Micros) -> Entry:
        """Give all items of a job of which nothing is there yet."""
        parts = self._records.enter(job)
        if new.key is not None:
            until = None if new.key_ttl is None else now + new.key_ttl
            parts.append(taking(items.dedup(new.tenant, new.key), self._records.layout.place(job), job, until, None))
        return parts

    def _written(self, parts: Sequence[Part]) -> bool:
        if not fits(parts):
            return False
        if not parts:
            return True
        try:
            if len(parts) == 1:
                put_one(self._wire, parts[0])
            else:
                self._wire.transact([part.request for part in parts], op_token())
        except (Failed, TooLarge):
            return False
        return True

    def _store_group(self, group: InsertGroup, now: Micros, changes: Changes) -> list[Inserted] | Refusal:
        for _ in range(_TRIES):
            decided = self._decide(group, now)
            if not isinstance(decided, _Group):
                return decided
            entries = [self.entry(job, new, now) for job, new in decided.fresh.values()]
            try:
                self.write(decided.core, entries, now)
            except Failed:
                continue  # what it was decided on has changed: decide again
            except TooLarge as error:
                msg = (
                    "A job of this size does not fit into an item of DynamoDB, which holds 400 KB; nothing was stored."
                )
                raise StoreError(msg) from error
            for job, _ in decided.fresh.values():
                changes.tell(None, job)
            return decided.answers
        msg = f"The keys or credits asked for in {self._wire.address.shown} are too much in demand; nothing was stored."
        raise StoreUnavailable(msg)

    def write(self, core: Sequence[Part], entries: Sequence[Entry], now: Micros) -> None:
        """Write jobs with the core of what must hold for them; raises `Failed` with an answer for each part."""
        parts = [*core, *(part for entry in entries for part in entry)]
        if fits(parts):
            if parts:
                self._wire.transact([part.request for part in parts], op_token())
        elif len(core) < PARTS:
            self._bundles.store(core, entries, now)
        else:
            msg = f"A group with more than {PARTS - 1} keys cannot be stored whole in DynamoDB; store it in parts."
            raise StoreError(msg)

    def entry(self, job: JobRecord, new: NewJob, now: Micros) -> Entry:
        """Give all items of a new job."""
        parts = self._records.enter(job, apart=bool(new.steps))
        for number, (name, result) in enumerate(dict(new.steps).items()):
            step = StepRecord(name, result, now)
            parts.append(Part("step", put(step_item(job.id, step, number - len(new.steps)))))
        if job.flow is not None and job.flow.reserved:
            parts.append(self._accounts.entry(job, "reserve", None, credit.Charge(job.flow.reserved, 0), now))
        return parts

    def _decide(self, group: InsertGroup, now: Micros) -> _Group | Refusal:
        """Decide on a group as everything is now."""
        stored = self._records.fetch([id_ for id_, _ in group])
        taken = self._taken(group)
        owners = self._records.fetch([item["job_id"]["S"] for item in taken.values()])
        accounts = self._accounts.read(new.tenant for _, new in group if new.credits)
        fresh: dict[str, tuple[JobRecord, NewJob]] = {}
        keys: dict[Place, str] = {}
        core: list[Part] = []
        answers: list[Inserted] = []
        paid: Counter[str] = Counter()
        for id_, new in group:
            known = stored.get(id_) or (fresh[id_][0] if id_ in fresh else None)
            if known:
                answers.append(Inserted(id_, new, now, known))
                continue
            place = None if new.key is None else items.dedup(new.tenant, new.key)
            if place is not None:
                owner = fresh[keys[place]][0] if place in keys else _owner(taken.get(place), owners, now)
                if owner and lifecycle.owns_key(owner, new):
                    if not lifecycle.same_request(owner, new):
                        return lifecycle.key_conflict(new, owner)
                    answers.append(Inserted(id_, new, now, owner, duplicate=True))
                    continue
                if owner and place not in keys:
                    core.append(self._records.unchanged(owner))
                keys[place] = id_
            try:
                funded = fund(new, accounts.get(new.tenant), paid)
            except InsufficientCredits as refusal:
                return refusal
            fresh[id_] = (lifecycle.create(id_, funded, now), funded)
            answers.append(Inserted(id_, funded, now))
        for place, id_ in keys.items():
            job, new = fresh[id_]
            until = None if new.key_ttl is None else now + new.key_ttl
            core.append(taking(place, self._records.layout.place(job), job, until, taken.get(place)))
        core += [self._accounts.charge(tenant, credit.Charge(sum_, 0)) for tenant, sum_ in paid.items() if sum_]
        return _Group(answers, fresh, core)

    def _taken(self, group: InsertGroup) -> dict[Place, Item]:
        """Read the records of the keys asked for, the expired ones too: whoever replaces one says which."""
        places = [items.dedup(new.tenant, new.key) for _, new in group if new.key is not None]
        found = self._wire.get_all(places) if places else {}
        return {place: found[place] for place in places if place in found}


def put_one(wire: Wire, part: Part) -> None:
    """Write one item under its condition: half the price of a transaction."""
    what = dict(part.request["Put"])
    op = op_token()
    wire.put(what.pop("Item") | items.attributes({"op_token": op}), op, **what)


def taking(place: Place, there: Key, job: JobRecord, until: Micros | None, held: Item | None) -> Part:
    """Write down that a key is taken, and where its job is, if its record still is as it was read."""
    values = {"job_id": job.id, "expires_at": until, "tenant": job.tenant, "idempotency_key": job.key}
    where = {f"job_{name.lower()}": value for name, value in there.key.items() if beside(there.key)}
    change: dict[str, Any] = {
        "Item": place.key | where | items.attributes(values),
        "ConditionExpression": "attribute_not_exists(PK)",
    }
    if held is not None:
        change["ConditionExpression"] = "job_id = :id"
        change["ExpressionAttributeValues"] = {":id": held["job_id"]}
    return Part("key", {"Put": change})


def _owner(held: Item | None, owners: dict[str, JobRecord], now: Micros) -> JobRecord | None:
    """Give the job that a key's record points to, if the key's window has not ended."""
    if held is None or ("expires_at" in held and int(held["expires_at"]["N"]) <= now):
        return None
    return owners.get(held["job_id"]["S"])


def plain(new: NewJob) -> bool:
    """Tell whether a job needs nothing looked up before it is stored."""
    return new.key is None and not new.credits and not new.steps


def likely_new(group: InsertGroup) -> bool:
    """Tell whether a group may be written without a look: a key that stands for one request for ever is seldom asked
    for twice, and one that is to hold off others while its job is active is asked for again and again.
    """
    keys = [(new.tenant, new.key) for _, new in group if new.key is not None]
    single = len(set(keys)) == len(keys) and len({id_ for id_, _ in group}) == len(group)
    return single and all(plain(new._replace(key=None)) and new.unique is None for _, new in group)


def fund(new: NewJob, account: Account | None, paid: Counter[str]) -> NewJob:
    """Set credits aside for a new job, beside those that others of its group have `paid`."""
    if account is None or not new.credits:
        return new
    left = account._replace(reserved=account.reserved + paid[new.tenant])
    [funded] = credit.reserve([new], left)
    paid[new.tenant] += funded.reserved
    return funded


def tenants(news: Iterable[NewJob]) -> set[str]:
    """Name the tenants that are asked for credits."""
    return {new.tenant for new in news if new.credits}
