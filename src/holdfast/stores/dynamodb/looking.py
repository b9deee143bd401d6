"""Looking for jobs: work to claim, what time has run out on, and lists by any filter."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from holdfast.domain import lifecycle
from holdfast.domain.errors import StoreError
from holdfast.domain.job import CLAIMABLE, JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Claim, Query
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.items import CREATED, DEADLINES, Item
from holdfast.stores.dynamodb.layout import LOOK_AT
from holdfast.stores.dynamodb.records import Records
from holdfast.stores.dynamodb.steps import Steps, steps_of
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_ROUNDS = 4
_GLANCE = 1_000
"""The most due jobs of a shard that are looked at to see how long some have waited."""
_FIRST_LOOK = 25


class Looking:
    """The ways in which jobs are found."""

    def __init__(self, wire: Wire, records: Records) -> None:
        self._wire = wire
        self._records = records

    def claim(self, want: Claim, paused: frozenset[str], now: Micros, changes: Changes) -> list[JobRecord]:
        """Lease runnable jobs: the best of those that a look shows."""
        if want.id is not None:
            return self._claim_one(want.id, want, paused, now, changes)
        claimed: list[JobRecord] = []
        room = None if want.queues is None else Counter({q: n for q, n in want.queues.items() if n > 0})
        shut = paused if room is not None else paused | want.full

        def fits(job: JobRecord) -> bool:
            wanted = job.queue not in shut and (room is None or room[job.queue] > 0)
            return wanted and want.tenant in (None, job.tenant) and lifecycle.runnable(job, now)

        for _ in range(_ROUNDS):
            limit = want.limit - len(claimed)
            if limit <= 0 or (room is not None and not +room):
                break
            chosen = self._choose(limit, room, fits, now)
            leased = self._wire.each(lambda job: self._attempt(job, want, now), chosen)
            pairs = zip(chosen, leased, strict=True)
            got = [_told(job, after, changes) for job, after in pairs if isinstance(after, JobRecord)]
            trouble = next((each for each in leased if isinstance(each, StoreError)), None)
            claimed += got
            if room is not None:
                room.subtract(job.queue for job in got)
            if trouble and not claimed:
                raise trouble
            if trouble or len(got) == len(chosen):
                break  # nobody was quicker: this was all there is
        return claimed

    def _claim_one(
        self, id_: str, want: Claim, paused: frozenset[str], now: Micros, changes: Changes
    ) -> list[JobRecord]:
        for _ in range(_ROUNDS):
            job = self._records.fetch_one(id_) if want.limit > 0 else None
            if job is None or not lifecycle.runnable(job, now) or job.queue in paused:
                return []
            if want.tenant not in (None, job.tenant):
                return []
            if leased := self._lease(job, want, now):
                return [_told(job, leased, changes)]
        return []

    def _choose(
        self, limit: int, room: Counter[str] | None, fits: Callable[[JobRecord], bool], now: Micros
    ) -> list[JobRecord]:
        """Look until enough is seen, and choose the best of it."""
        enough = limit if room is None else min(limit, room.total())
        seen: list[JobRecord] = []
        ahead = min(self._records.running(), limit)  # those of ours that lie before what is waiting
        page = max(self._wire.address.page, min(limit + ahead, 1_000))
        for shard in self._records.layout.waiting(self._wire, now, page):
            seen += self._see(shard, enough, room, fits)
        left = None if room is None else Counter(room)
        chosen: list[JobRecord] = []
        for job in sorted(seen, key=lifecycle.order):
            if len(chosen) >= limit:
                break
            if left is not None:
                if left[job.queue] < 1:
                    continue
                left[job.queue] -= 1
            chosen.append(job)
        return chosen

    def _see(
        self, shard: Iterator[JobRecord], enough: int, room: Counter[str] | None, fits: Callable[[JobRecord], bool]
    ) -> list[JobRecord]:
        """See as many claimable jobs as are wanted, and never fewer than a page shows."""
        seen: list[JobRecord] = []
        queues: Counter[str] = Counter()
        useful = 0
        for looked, job in enumerate(shard, 1):
            if fits(job):
                queues[job.queue] += 1
                useful += room is None or queues[job.queue] <= room[job.queue]
                seen.append(job)
            if useful >= enough and looked >= self._wire.address.page:
                break  # and do not ask for what comes next: that may be another page
        return seen

    def _attempt(self, job: JobRecord, want: Claim, now: Micros) -> JobRecord | StoreError | None:
        """Try to lease one of several: its trouble must not cost the others their lease."""
        try:
            return self._lease(job, want, now)
        except StoreError as error:
            return error

    def _lease(self, job: JobRecord, want: Claim, now: Micros) -> JobRecord | None:
        """Lease one job, if nobody was quicker."""
        leased = lifecycle.claim(job, lease_id=want.lease_id, owner=want.owner, lease=want.lease, now=now)
        op = op_token()
        change = self._records.change(job, leased, op)
        new = job.version == 1 and not job.step_cursor  # nothing can have been recorded of it
        if not new:
            change["ReturnValues"] = "ALL_OLD"  # which steps it has
        try:
            old = self._wire.update(self._records.layout.place(job), change, op)
        except Failed:
            return None
        self._records.remember(leased, Steps() if new else steps_of(old) if old else None)
        return leased

    def next_due(self, queues: Sequence[str] | None, paused: frozenset[str], now: Micros) -> Micros | None:
        """Give the instant when a job can next be claimed: the first that fits, since they lie by time."""
        soonest: list[Micros] = []
        for shard in self._records.layout.waiting(self._wire, None, self._wire.address.page or _FIRST_LOOK):
            for job in shard:
                due = max(now, job.available_at)
                wanted = queues is None or job.queue in queues
                if job.state in CLAIMABLE and wanted and job.queue not in paused and not lifecycle.overdue(job, due):
                    soonest.append(due)
                    break
        return min(soonest, default=None)

    def due_since(self, paused: frozenset[str], now: Micros) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due, among the first of each shard."""
        since: dict[str, Micros] = {}
        for shard in self._records.layout.waiting(self._wire, now, self._wire.address.page or _FIRST_LOOK):
            for job in islice(shard, _GLANCE):
                if lifecycle.runnable(job, now) and job.queue not in paused:
                    since[job.queue] = min(since.get(job.queue, job.available_at), job.available_at)
        return since

    def expired(self, limit: int, now: Micros) -> list[JobRecord]:
        """List jobs that time has run out on: leased ones lie by the end of their lease, others by their deadline."""
        by = now - self._wire.address.skew
        late: list[JobRecord] = []
        for job in self._records.layout.leased(self._wire, by) if limit > 0 else ():
            if (job.lease_expires_at or 0) > by:
                self._look_later(job)
            elif len(late) < limit:
                late.append(job)
            else:
                return late
        waiting = self._marked(DEADLINES, now) if len(late) < limit else ()
        return [*late, *(job for job in waiting if job.state in CLAIMABLE and lifecycle.overdue(job, now))][:limit]

    def _look_later(self, job: JobRecord) -> None:
        """Let a job whose lease was extended be looked at again when that is over."""
        change = {
            "UpdateExpression": "SET #at = :until",
            "ConditionExpression": "lease_expires_at = :until",
            "ExpressionAttributeNames": {"#at": LOOK_AT},
            "ExpressionAttributeValues": {":until": items.wire(job.lease_expires_at or 0)},
        }
        with suppress(Failed):  # it has changed meanwhile
            self._wire.update(self._records.layout.place(job), change, "")

    def unsubmitted(self, before: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` since before this."""
        found = self._marked(CREATED, before)
        return [job for job in found if job.state is State.CREATED and job.updated_at <= before][:limit]

    def _marked(self, partition: str, upto: Micros) -> Iterable[JobRecord]:
        """Read the jobs that are marked in a partition up to a time."""
        ids = [item["job_id"]["S"] for item in self._wire.walk(partition, "0", items.upto("", upto))]
        return self._records.fetch(ids).values() if ids else ()

    def held_by(self, owner: str) -> list[JobRecord]:
        """List the jobs that an owner has leased."""
        return [job for job in self._records.layout.leased(self._wire) if job.lease_owner == owner]

    def purgeable(self, limit: int, now: Micros) -> list[Item]:
        """List the items of finished jobs whose time is over."""
        layout = self._records.layout
        ended = layout.ended(self._wire, now, min(limit, 1_000))
        return list(islice((item for item in ended if lifecycle.purgeable(layout.record(item), now)), limit))

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        found: list[JobRecord] = []
        listed = self._listed(query)
        while len(found) < query.limit:
            ids = list(islice(listed, min(2 * query.limit, 100)))
            if not ids:
                break
            jobs = self._records.fetch(ids)
            found += [jobs[id_] for id_ in ids if id_ in jobs and query.matches(jobs[id_])]
        return found[: query.limit]

    def _listed(self, query: Query) -> Iterator[str]:
        """Name the jobs that a filter may match, newest first."""
        if query.parent is None:
            return self._records.layout.listed(self._wire, query)
        walk = self._wire.walk(f"children#{query.parent}", " ", query.before or "~", newest=True)
        return (item["SK"]["S"] for item in walk)

    def open_children(self, parents: Sequence[str]) -> frozenset[str]:
        """Name those of these jobs that have a child which has not ended."""
        return frozenset(
            parent for parent, found in zip(parents, self._wire.each(self._open, parents), strict=True) if found
        )

    def _open(self, parent: str) -> bool:
        more: dict[str, Any] = {"FilterExpression": "#open = :open", "names": {"#open": "open"}}
        walk = self._wire.walk(f"children#{parent}", values={":open": items.wire(True)}, **more)
        return next(walk, None) is not None


def _told(before: JobRecord, after: JobRecord, changes: Changes) -> JobRecord:
    """Tell of a claimed job, and give it."""
    changes.tell(before, after)
    return after
