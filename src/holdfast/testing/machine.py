"""A random walk over the port that compares any store with the reference after every step.

The subject and a `MemoryStore` share one clock and are asked the same things; every answer must be equal, and after
each step so must every record, attempt, step, count and list. Much of what is asked is stale on purpose: old tokens,
old versions, moves sent again, ids of nobody.

    def test_sqlite_does_as_the_reference_does(tmp_path: Path) -> None:
        numbers = count()
        compare(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/{next(numbers)}.db", clock))

`open_store` is asked once per walk and must open an empty store each time. `HOLDFAST_MACHINE_EXAMPLES` sets the number
of walks.
"""

import os
import random
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdfast.domain import lifecycle
from holdfast.domain.errors import IllegalMove, KeyConflict
from holdfast.domain.ids import Ids
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention, State, Trigger
from holdfast.domain.lifecycle import Held, Move, Seen
from holdfast.domain.moments import HOUR, SECOND, Micros
from holdfast.port.clock import Clock
from holdfast.port.store import Beat, Claim, Inserted, Query, Store, WorkerRecord
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock

T = TypeVar("T")

_WALKS = 200
_STEPS = 40
_SPARE = 10
_LEASE: Micros = 5 * SECOND
_TTL: Micros = 3 * SECOND
_RETENTION = Retention(succeeded=4 * SECOND, cancelled=9 * SECOND, dead=20 * SECOND)
_QUEUES = ("a", "b")
_OWNERS = ("ada", "bob")

_moments = st.sampled_from([0, 1, SECOND, 3 * SECOND])
_places = st.integers(0, 1_000)

_news = st.builds(
    NewJob,
    kind=st.sampled_from(["echo", "mail"]),
    payload=st.sampled_from(['{"a":1,"b":2}', '{"b":2,"a":1}', '"ü\'"']),
    queue=st.sampled_from(_QUEUES),
    tenant=st.sampled_from(["", "t"]),
    priority=st.sampled_from([0, 0, 1, -1]),
    retry=st.sampled_from(["fixed:1000000:0:9000000", "exponential:500000:0.5:9000000"]),
    max_attempts=st.integers(1, 3),
    crash_cap=st.integers(1, 3),
    key=st.sampled_from([None, None, "k1", "k2"]),
    key_ttl=st.sampled_from([None, _TTL]),
    delay=_moments,
    run_at=st.none() | st.integers(-2, 2).map(lambda n: 1_767_225_600 * SECOND + n * SECOND),
    expires_after=st.sampled_from([None, None, 0, 2 * SECOND]),
    steps_total=st.integers(0, 2),
    state=st.sampled_from([State.QUEUED, State.QUEUED, State.CREATED]),
    user=st.sampled_from([None, "zoë"]),
    trigger=st.sampled_from(list(Trigger)).map(str),
    trace_id=st.sampled_from([None, "trace 1"]),
)
_wishes = st.fixed_dictionaries(
    {
        "owner": st.sampled_from(_OWNERS),
        "lease": st.sampled_from([0, SECOND, _LEASE]),
        "limit": st.integers(0, 4),
        "queues": st.none() | st.dictionaries(st.sampled_from([*_QUEUES, "c"]), st.integers(0, 3)),
        "full": st.frozensets(st.sampled_from(_QUEUES), max_size=1),
    }
)
_failures = st.builds(Failure, st.sampled_from(["flaky", "expired"]), st.sampled_from(["", "it's"]), st.booleans())
_verbs = st.sampled_from(
    [
        "submit",
        "start",
        "checkpoint",
        "complete",
        "fail",
        "release",
        "snooze",
        "reap",
        "cancel",
        "settle_cancel",
        "redrive",
    ]
)
_wills = st.tuples(
    _places,
    _verbs,
    st.sampled_from(["now", "now", "now", "then", "forged"]),
    _failures,
    st.floats(0, 0.999),
    st.sampled_from("st"),
)


class StoreMachine(RuleBasedStateMachine):
    """One walk. Built by `compare`, which names the subject."""

    open_store: Callable[[Clock], Store]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.subject = type(self).open_store(self.clock)
        self.reference = MemoryStore(clock=self.clock)
        self.ids = Ids(lambda: self.clock.now() // 1000, random.Random(1).getrandbits)  # noqa: S311 - the same ids in every walk
        self.spare = self.ids.take(40)
        self.asked: list[tuple[list[tuple[str, NewJob]], Micros]] = []
        self.past: list[JobRecord] = []
        self.moves: list[Move] = []
        self.leases = 0

    def teardown(self) -> None:
        """Close the subject, so that its file can go."""
        self.subject.close()

    def both(self, ask: Callable[[Store], T]) -> T:
        """Ask both stores the same and compare the answers."""
        expected = ask(self.reference)
        found = ask(self.subject)
        assert found == expected, f"the store answered\n  {found}\nand the reference\n  {expected}"
        return expected

    def known(self) -> list[str]:
        """Name every id that was ever used, and one that was not."""
        return sorted({id_ for group, _ in self.asked for id_, _ in group}) + self.spare[-1:]

    def wish(self, fields: dict[str, Any]) -> Claim:
        """Make a claim under a fresh lease id."""
        self.leases += 1
        if fields["queues"] is not None:
            fields = {**fields, "full": frozenset[str]()}
        return Claim(lease_id=f"lease-{self.leases}", **fields)

    def remember(self, jobs: list[JobRecord]) -> None:
        """Keep records for those who act on what they once knew."""
        self.past = [*self.past, *(job for job in jobs if job not in self.past)][-100:]

    @rule(groups=st.lists(st.lists(_news, max_size=3), min_size=1, max_size=2))
    def insert(self, groups: list[list[NewJob]]) -> None:
        """Store groups of jobs, some under ids made early.

        Jobs of one instant get rising ids: which of them is older, nobody can tell.
        """
        self.clock.advance(microseconds=1)
        early = 7 * (len(groups) - 1)
        room = len(self.spare) - _SPARE
        wanted = [[(self.spare.pop(early), new) for new in news] for news in groups if (room := room - len(news)) > 0]
        self.asked += [(group, self.clock.now()) for group in wanted]
        self.store(wanted)

    @precondition(lambda self: self.asked)
    @rule(places=st.lists(_places, min_size=1, max_size=2, unique=True))
    def insert_again(self, places: list[int]) -> None:
        """Send groups again, as after a lost reply: before a key's window or a job's retention can have ended."""
        recent = [group for group, at in self.asked if at > self.clock.now() - _TTL]
        self.store([recent[place % len(recent)] for place in places[: len(recent)]])

    def store(self, groups: list[list[tuple[str, NewJob]]]) -> None:
        """Insert into both."""
        answers = self.both(lambda store: [_plain(answer) for answer in store.insert(groups)])
        self.remember([job for answer in answers if isinstance(answer, list) for job, _ in answer])

    @rule(fields=_wishes)
    def claim(self, fields: dict[str, Any]) -> None:
        """Claim what is there."""
        want = self.wish(fields)
        self.remember(self.both(lambda store: store.claim(want)))

    @precondition(lambda self: self.asked)
    @rule(fields=_wishes, place=_places)
    def claim_by_id(self, fields: dict[str, Any], place: int) -> None:
        """Deliver one job."""
        want = self.wish({**fields, "queues": None, "full": frozenset[str](), "limit": 1})._replace(
            id=self.known()[place % len(self.known())]
        )
        self.remember(self.both(lambda store: store.claim(want)))

    @precondition(lambda self: self.past)
    @rule(wills=st.lists(_wills, min_size=1, max_size=4))
    def commit(self, wills: list[Any]) -> None:
        """Commit moves, decided on the present record or on an old one."""
        moves = [move for will in wills if (move := self.decide(*will))]
        self.moves += moves
        self.both(lambda store: store.commit(moves))

    @precondition(lambda self: self.past)
    @rule(wills=st.lists(_wills, max_size=3), fields=_wishes)
    def exchange(self, wills: list[Any], fields: dict[str, Any]) -> None:
        """Commit and claim in one trip."""
        moves = [move for will in wills if (move := self.decide(*will))]
        self.moves += moves
        want = self.wish(fields)
        self.remember(self.both(lambda store: store.exchange(moves, want))[1])

    @precondition(lambda self: self.moves)
    @rule(places=st.lists(_places, min_size=1, max_size=3))
    def ask_again(self, places: list[int]) -> None:
        """Send moves again, as after a lost reply."""
        moves = [self.moves[-1 - place % min(len(self.moves), 12)] for place in places]
        self.both(lambda store: store.commit(moves))

    @precondition(lambda self: self.past)
    @rule(places=st.lists(st.tuples(_places, st.booleans(), st.booleans(), st.integers(0, 9)), min_size=1, max_size=4))
    def heartbeat(self, places: list[tuple[int, bool, bool, int]]) -> None:
        """Beat for leases, some of them lost or never given."""
        beats = []
        for place, begun, present, twist in places:
            job = self.pick(place, present=present)
            token = job.token + (twist == 0)
            beats.append(Beat(self.spare[-1] if twist == 1 else job.id, token, job.lease_id or "none", begun))
        distinct = list({beat.id: beat for beat in beats}.values())
        self.both(lambda store: store.heartbeat(distinct, _LEASE))

    @rule(owner=st.sampled_from(_OWNERS))
    def abandon(self, owner: str) -> None:
        """Give up on a worker."""
        self.both(lambda store: store.abandon(owner))

    @rule()
    def reap(self) -> None:
        """Reap all that is expired."""
        now = self.clock.now()
        moves = [lifecycle.reap(job, now, _RETENTION) for job in self.reference.expired(100)]
        self.moves += moves
        self.both(lambda store: store.commit(moves))

    @rule()
    def purge(self) -> None:
        """Purge all whose time is over."""
        self.both(lambda store: store.purge(1_000))

    @rule(queue=st.sampled_from([*_QUEUES, "c"]), on=st.booleans())
    def pause(self, queue: str, on: bool) -> None:  # noqa: FBT001 - drawn by Hypothesis
        """Pause or resume."""
        self.both(lambda store: store.pause(queue) if on else store.resume(queue))

    @rule(owner=st.sampled_from(_OWNERS), term=_moments)
    def lead(self, owner: str, term: Micros) -> None:
        """Stand for a role."""
        self.both(lambda store: store.lead("upkeep", owner, term))

    @rule(owner=st.sampled_from(_OWNERS), term=_moments, there=st.booleans())
    def report(self, owner: str, term: Micros, there: bool) -> None:  # noqa: FBT001 - drawn by Hypothesis
        """Enlist or dismiss a worker."""
        now = self.clock.now()
        worker = WorkerRecord(owner, "host", 1, None if term else _QUEUES, ("echo",), 2, now, now, now + term, 0)
        self.both(lambda store: store.enlist(worker) if there else store.dismiss(owner))

    @rule(span=st.sampled_from([1, SECOND // 2, SECOND, 3 * SECOND, _LEASE, 21 * SECOND, HOUR]))
    def advance(self, span: Micros) -> None:
        """Let time pass."""
        self.clock.advance(microseconds=span)

    @rule(
        state=st.none() | st.sampled_from(State),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "kind": st.sampled_from(["echo", "nothing"]),
                "queue": st.sampled_from(_QUEUES),
                "tenant": st.sampled_from(["", "t"]),
                "error_code": st.sampled_from(["flaky", "lease_expired"]),
                "key": st.sampled_from(["k1", "k2"]),
            },
        ),
        place=_places,
        limit=st.integers(1, 5),
    )
    def find(self, state: State | None, fields: dict[str, Any], place: int, limit: int) -> None:
        """List by any filter."""
        before = self.known()[place % len(self.known())] if place % 2 else None
        self.both(lambda store: store.find(Query(state=state, before=before, limit=limit, **fields)))

    @invariant()
    def nothing_differs(self) -> None:
        """Compare all that can be seen."""
        ids = self.known()
        found = self.both(lambda store: store.read(ids))
        self.both(lambda store: [(store.attempts(id_), store.steps(id_)) for id_ in ids])
        self.both(lambda store: {what: number for what, number in store.counts().items() if number})
        self.both(lambda store: sorted(store.expired(1_000)))
        self.both(lambda store: sorted(store.unsubmitted(SECOND, 1_000)))
        self.both(lambda store: [store.next_due(queues) for queues in (None, ["a"], ["a", "b"], [])])
        self.both(lambda store: (store.paused(), sorted(store.workers())))
        self.remember([job for job in found if job])

    def pick(self, place: int, *, present: bool) -> JobRecord:
        """Choose a record, as it is now or as it once was."""
        job = self.past[place % len(self.past)]
        now = self.reference.read([job.id])[0] if present else None
        return now or job

    def decide(self, place: int, verb: str, when: str, failure: Failure, draw: float, step: str) -> Move | None:  # noqa: PLR0917 - drawn together
        """Decide a move as somebody would who knows what `when` says; none if the lifecycle has no such move."""
        job = self.pick(place, present=when != "then")
        now = self.clock.now() + 10 * SECOND * (when == "then")
        decisions: dict[str, Callable[[], Move]] = {
            "submit": lambda: lifecycle.submit(job),
            "start": lambda: lifecycle.start(job),
            "checkpoint": lambda: lifecycle.checkpoint(job, step, f'"{place}"'),
            "complete": lambda: lifecycle.complete(job, f"{place}" if place % 2 else None, _RETENTION),
            "fail": lambda: lifecycle.fail(job, failure, draw=draw, retention=_RETENTION, traceback=step),
            "release": lambda: lifecycle.release(job),
            "snooze": lambda: lifecycle.snooze(job, SECOND),
            "reap": lambda: lifecycle.reap(job, now, _RETENTION),
            "cancel": lambda: lifecycle.cancel(job, _RETENTION),
            "settle_cancel": lambda: lifecycle.settle_cancel(job, _RETENTION),
            "redrive": lambda: lifecycle.redrive(job),
        }
        try:
            move = decisions[verb]()
        except IllegalMove:
            return None
        return _forged(move, place) if when == "forged" else move


def compare(
    open_store: Callable[[Clock], Store], *, walks: int = _WALKS, phases: Collection[Phase] = tuple(Phase)
) -> None:
    """Walk until the walks are done or a difference is found, shown then as the shortest walk that leads to it."""

    class Subject(StoreMachine):
        pass

    Subject.open_store = staticmethod(open_store)
    run_state_machine_as_test(
        Subject,
        settings=settings(
            max_examples=int(os.environ.get("HOLDFAST_MACHINE_EXAMPLES", walks)),
            stateful_step_count=_STEPS,
            deadline=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def _plain(answer: list[Inserted] | KeyConflict) -> str | list[tuple[JobRecord, bool]]:
    """Make answers comparable: an exception equals only itself, and how a record is kept is a store's own affair."""
    return str(answer) if isinstance(answer, KeyConflict) else [(one.job, one.duplicate) for one in answer]


def _forged(move: Move, place: int) -> Move:
    """Spoil a guard or an id."""
    guard = move.guard
    if isinstance(guard, Seen):
        return move._replace(guard=Seen(guard.version - 1 - place % 2))
    spoilt = [Held(guard.token + 1, guard.lease_id), Held(guard.token - 1, guard.lease_id), Held(guard.token, "x")]
    return move._replace(guard=spoilt[place % 3])
