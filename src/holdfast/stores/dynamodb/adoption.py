"""Jobs that come from another store, or go there: each with its whole past, or not at all."""

from collections.abc import Sequence

from holdfast.domain import accounts as credit
from holdfast.domain import moving
from holdfast.domain.errors import KeyConflict, StoreUnavailable
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer
from holdfast.port.parcel import Parcel
from holdfast.stores.dynamodb import items, past
from holdfast.stores.dynamodb.accounts import Accounts
from holdfast.stores.dynamodb.bundles import fits
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.insertion import taking
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.records import Part, Records, put
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_TRIES = 20


class Adoption:
    """How jobs move between tables and other stores."""

    def __init__(self, wire: Wire, records: Records, accounts: Accounts) -> None:
        self._wire = wire
        self._records = records
        self._accounts = accounts

    def parcels(self, ids: Sequence[str], now: Micros) -> list[Parcel]:
        """Read jobs with their whole past; those that are not there are left out."""
        found = self._records.fetch(ids) if ids else {}
        return [self._parcel(found[id_], now) for id_ in ids if id_ in found]

    def _parcel(self, job: JobRecord, now: Micros) -> Parcel:
        held = self._key(job, now)
        keyed = held is not None and held["job_id"]["S"] == job.id
        until = int(held["expires_at"]["N"]) if held and keyed and "expires_at" in held else None
        return Parcel(
            job,
            past.attempts(self._wire, job.id),
            past.steps(self._wire, job.id, self._records.item(job.id)),
            past.signals(self._wire, job.id),
            keyed,
            until,
        )

    def _key(self, job: JobRecord, now: Micros) -> Item | None:
        """Read who has the job's key now."""
        held = None if job.key is None else self._wire.get(items.dedup(job.tenant, job.key))
        if held is not None and "expires_at" in held and int(held["expires_at"]["N"]) <= now:
            return None
        return held

    def adopt(self, parcel: Parcel, now: Micros, changes: Changes) -> Answer | KeyConflict:
        """Store a job with its whole past, unless it or its key is there already."""
        job = parcel.job
        for _ in range(_TRIES):
            there = self._records.fetch_one(job.id)
            if (answer := moving.welcome(there, job)) is not None:
                return answer
            held = self._key(job, now) if parcel.keyed else None
            owner = job.id if held is None else held["job_id"]["S"]
            if owner != job.id and self._records.fetch_one(owner) is not None:
                return moving.key_conflict(job, owner)
            try:
                self._write(parcel, there, now)
            except Failed:
                continue  # something came first: look again
            self._records.forget(job.id)
            changes.tell(there, job)
            return Answer.OK
        msg = f"The job {job.id} in {self._wire.address.shown} is too much in demand; it was not adopted."
        raise StoreUnavailable(msg)

    def _write(self, parcel: Parcel, there: JobRecord | None, now: Micros) -> None:
        job = parcel.job
        core = self._records.replace(there, job, apart=bool(parcel.steps))
        if parcel.keyed and job.key is not None:
            place = items.dedup(job.tenant, job.key)
            held = self._wire.get(place)
            core.append(taking(place, self._records.layout.place(job), job, parcel.keyed_until, held))
        if change := credit.brought(job):
            known = self._accounts.read([job.tenant]).get(job.tenant)
            core.append(self._accounts.bring(job.tenant, change, known))
            core.append(self._accounts.entry(job, "adopt", None, change, now))
        sides = past.written(parcel)
        kept = {Place(item["PK"]["S"], item["SK"]["S"]) for item in sides}
        old = [Place(item["PK"]["S"], item["SK"]["S"]) for item in self._wire.walk(f"of#{job.id}")] if there else []
        over = [place for place in old if place not in kept]
        parts = [*core, *(Part("side", put(item)) for item in sides)]
        parts += [Part("side", {"Delete": {"Key": place.key}}) for place in over]
        if not fits(parts):  # nobody looks at the past of a job that is not there yet
            self._wire.write_all(puts=sides, deletes=over)
            parts = core
        self._wire.transact([part.request for part in parts], op_token())
