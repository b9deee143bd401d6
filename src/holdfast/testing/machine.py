"""A random walk over the port that compares any store with the reference after every step.

The subject and a `MemoryStore` share one clock and are asked the same things; every answer must be equal, and after
each step so must every record, attempt, step, signal, account, event, schedule, page, count and list. Much of what is
asked is stale on purpose: old tokens, old versions, moves sent again, ids of nobody. Where the port leaves the order
open (events of two jobs, entries of one call), the order is not compared.

    def test_sqlite_does_as_the_reference_does(tmp_path: Path) -> None:
        numbers = count()
        compare(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/{next(numbers)}.db", clock))

`open_store` must open an empty store for each walk. `HOLDFAST_MACHINE_EXAMPLES` sets the number of walks.
"""

import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdfast.domain import events, lifecycle
from holdfast.domain.errors import IllegalMove, InsufficientCredits
from holdfast.domain.ids import Ids
from holdfast.domain.job import Failure, JobRecord, NewJob, State
from holdfast.domain.limits import ALL, BOOK, Kept, Rule, encoded, page_name
from holdfast.domain.moments import HOUR, SECOND, Micros
from holdfast.domain.move import Held, Move, Seen, Verb
from holdfast.port.clock import Clock
from holdfast.port.store import Beat, Claim, Inserted, Page, Query, Refusal, ScheduleRecord, Store, WorkerRecord
from holdfast.stores.memory import MemoryStore
from holdfast.testing import draws
from holdfast.testing.clock import ManualClock
from holdfast.testing.draws import BOOKS, LEASE, NAMES, OWNERS, QUEUES, RETENTION, SCHEDULES, SINKS, TENANTS, TTL

T = TypeVar("T")
_WALKS = 200
_STEPS = 40
_SPARE = 10


class StoreMachine(RuleBasedStateMachine):
    """One walk. Built by `compare`, which names the subject."""

    open_store: Callable[[Clock], Store]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.subject = type(self).open_store(self.clock)
        self.reference = MemoryStore(clock=self.clock)
        self.ids = Ids(lambda: self.clock.now() // 1000, random.Random(1).getrandbits)  # noqa: S311 - the same ids in every walk
        self.spare = self.ids.take(70)
        self.asked: list[tuple[list[tuple[str, NewJob]], Micros]] = []
        self.past: list[JobRecord] = []
        self.moves: list[Move] = []
        self.born: list[str] = []
        self.seen: dict[str, JobRecord | None] = {}
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
        return sorted({id_ for group, _ in self.asked for id_, _ in group} | set(self.born)) + self.spare[-1:]

    def wish(self, fields: dict[str, Any]) -> Claim:
        """Make a claim under a fresh lease id."""
        self.leases += 1
        if fields["queues"] is not None:
            fields = {**fields, "full": frozenset[str]()}
        return Claim(lease_id=f"lease-{self.leases}", **fields)

    def remember(self, jobs: list[JobRecord]) -> None:
        """Keep records for those who act on what they once knew."""
        self.past = [*self.past, *(job for job in jobs if job not in self.past)][-100:]

    @rule(groups=st.lists(st.lists(draws.news, min_size=1, max_size=3), min_size=1, max_size=2), place=draws.places)
    def insert(self, groups: list[list[NewJob]], place: int) -> None:
        """Store groups of jobs under rising ids: of jobs due at one instant the older comes first, and a store may tell
        age by the id or by when it was stored.
        """
        self.clock.advance(microseconds=1)
        room = len(self.spare) - _SPARE
        parent = self.known()[place % len(self.known())] if place % 3 == 0 else None
        wanted = [
            [(self.spare.pop(0), new._replace(parent=parent)) for new in news]
            for news in groups
            if (room := room - len(news)) > 0
        ]
        self.asked += [(group, self.clock.now()) for group in wanted]
        self.store(wanted)

    @precondition(lambda self: self.asked)
    @rule(places=st.lists(draws.places, min_size=1, max_size=2, unique=True))
    def insert_again(self, places: list[int]) -> None:
        """Send groups again, as after a lost reply: before a key's window or a job's retention can have ended."""
        recent = [
            group for group, at in self.asked if at > self.clock.now() - TTL and self.rises(id_ for id_, _ in group)
        ]
        self.clock.advance(microseconds=1)
        self.store([recent[turn] for turn in sorted(place % len(recent) for place in places[: len(recent)])])

    def rises(self, ids: Iterable[str]) -> bool:
        """Tell whether ids still rise with age: none is of a job that is yet to be stored, behind a younger one."""
        stored = {job.id for job in self.reference.read(self.known()) if job}
        return all(id_ in stored or id_ > max(stored, default="") for id_ in ids)

    def store(self, groups: list[list[tuple[str, NewJob]]]) -> None:
        """Insert into both."""
        answers = self.both(lambda store: [_plain(answer) for answer in store.insert(groups)])
        self.remember([job for answer in answers if isinstance(answer, list) for job, _ in answer])

    @rule(fields=draws.wishes)
    def claim(self, fields: dict[str, Any]) -> None:
        """Claim what is there."""
        want = self.wish(fields)
        self.remember(self.both(lambda store: store.claim(want)))

    @precondition(lambda self: self.asked)
    @rule(fields=draws.wishes, place=draws.places)
    def claim_by_id(self, fields: dict[str, Any], place: int) -> None:
        """Deliver one job."""
        want = self.wish({**fields, "queues": None, "full": frozenset[str](), "limit": 1})._replace(
            id=self.known()[place % len(self.known())]
        )
        self.remember(self.both(lambda store: store.claim(want)))

    @precondition(lambda self: self.reference.next_due(None))
    @rule(fields=draws.wishes, wills=st.lists(draws.wills, min_size=1, max_size=6))
    def work(self, fields: dict[str, Any], wills: list[dict[str, Any]]) -> None:
        """Claim what is there, or soon will be, and go to work on it at once."""
        soon = (self.reference.next_due(None) or 0) - self.clock.now()
        self.clock.advance(microseconds=min(soon, HOUR))
        want = self.wish({**fields, "queues": None, "full": frozenset[str](), "limit": 3})
        jobs = self.both(lambda store: store.claim(want))
        self.remember(jobs)
        if jobs:
            moves = self.decided(wills, jobs)
            self.both(lambda store: store.commit(moves))

    @precondition(lambda self: self.past)
    @rule(wills=st.lists(draws.wills, min_size=1, max_size=4))
    def commit(self, wills: list[dict[str, Any]]) -> None:
        """Commit moves, decided on the present record or on an old one."""
        moves = self.decided(wills)
        self.both(lambda store: store.commit(moves))

    @precondition(lambda self: self.past)
    @rule(wills=st.lists(draws.wills, max_size=3), fields=draws.wishes)
    def exchange(self, wills: list[dict[str, Any]], fields: dict[str, Any]) -> None:
        """Commit and claim in one trip."""
        moves = self.decided(wills)
        want = self.wish(fields)
        self.remember(self.both(lambda store: store.exchange(moves, want))[1])

    @precondition(lambda self: self.moves)
    @rule(places=st.lists(draws.places, min_size=1, max_size=3))
    def ask_again(self, places: list[int]) -> None:
        """Send moves again, as after a lost reply."""
        recent = [move for move in self.moves if self.rises(id_ for id_, _ in move.children)]
        moves = [recent[turn] for turn in sorted(place % len(recent) for place in places[: len(recent)])]
        self.clock.advance(microseconds=1)
        self.both(lambda store: store.commit(moves))

    @precondition(lambda self: self.past)
    @rule(
        places=st.lists(
            st.tuples(draws.places, st.booleans(), st.booleans(), st.integers(0, 9)), min_size=1, max_size=4
        )
    )
    def heartbeat(self, places: list[tuple[int, bool, bool, int]]) -> None:
        """Beat for leases, some of them lost or never given."""
        beats = []
        for place, begun, present, twist in places:
            job = self.pick(place, present=present)
            token = job.token + (twist == 0)
            told = f"[0.{twist},null]" if twist % 2 else None
            beats.append(Beat(self.spare[-1] if twist == 1 else job.id, token, job.lease_id or "none", begun, told))
        distinct = list({beat.id: beat for beat in beats}.values())
        self.both(lambda store: store.heartbeat(distinct, LEASE))

    @rule(
        span=st.sampled_from([0, 1, SECOND // 2, SECOND, SECOND, 3 * SECOND, LEASE, 21 * SECOND, HOUR]),
        what=st.sampled_from(["", "reap", "reap", "reap", "purge"]),
    )
    def pass_time(self, span: Micros, what: str) -> None:
        """Let time pass, and do what it is time for."""
        self.clock.advance(microseconds=span)
        if what == "reap":
            late = self.reference.expired(100)
            moves = [events.told(job, lifecycle.reap(job, self.clock.now(), RETENTION), public=False) for job in late]
            self.moves += moves
            self.both(lambda store: store.commit(moves))
        elif what == "purge":
            self.both(_purged)
            self.both(lambda store: list(store.check()))
            self.seen.clear()

    @rule(
        what=st.sampled_from(["grant", "grant", "save", "remove"]),
        amount=st.sampled_from([3, 6, 20, -2, -9]),
        place=draws.places,
        seen=st.none() | st.integers(1, 3),
    )
    def keep_books(self, what: str, amount: int, place: int, seen: int | None) -> None:
        """Grant credits or take some back; write a schedule or try to, or forget it."""
        now, name = self.clock.now(), SCHEDULES[place % 2]
        record = ScheduleRecord(name, f'{{"n":{now}}}', now + 1, now if place % 3 else None, paused=place % 5 == 0)
        asks: dict[str, Callable[[Store], object]] = {
            "grant": lambda store: store.grant(TENANTS[place % 2], amount, f"g{place % 7}"),
            "save": lambda store: store.save_schedule(record, seen),
            "remove": lambda store: store.remove_schedule(name),
        }
        self.both(asks[what])

    @rule(
        what=st.sampled_from(["write", "write", "write", "remove", "list"]),
        place=draws.places,
        seen=st.none() | st.integers(1, 3),
        lasts=st.none() | draws.moments,
    )
    def keep_pages(self, what: str, place: int, seen: int | None, lasts: Micros | None) -> None:
        """Write a page or try to, forget it, or list some."""
        now, book, name = self.clock.now(), BOOKS[place % 2], NAMES[place % 3]
        page = Page(book, name, f'"{place}"', expires_at=None if lasts is None else now + lasts)
        asks: dict[str, Callable[[Store], object]] = {
            "write": lambda store: store.write_page(page, seen),
            "remove": lambda store: store.remove_page(book, name),
            "list": lambda store: store.pages(book, name, seen or 1, bool(place % 2)),
        }
        self.both(asks[what])

    @rule(sink=st.sampled_from(SINKS), how=st.sampled_from(["all", "none", "gone", "trim"]))
    def listen(self, sink: str, how: str) -> None:
        """Let a sink have all there is, or nothing, or forget it; or remove what every sink has had."""

        def ask(store: Store) -> int | None:
            """Stores number their events as they like."""
            told = store.events(0, 10_000)
            if how == "trim":
                return store.trim(10_000)
            if how == "gone":
                store.remove_sink(sink)
            else:
                store.reach(sink, told[-1].position if told and how == "all" else 0)
            return None

        self.both(ask)

    @rule(
        what=st.sampled_from(["pause", "resume", "resume", "lead", "enlist", "dismiss", "abandon"]),
        owner=st.sampled_from(OWNERS),
        queue=st.sampled_from([*QUEUES, "c"]),
        term=draws.moments,
    )
    def govern(self, what: str, owner: str, queue: str, term: Micros) -> None:
        """Pause or resume, stand for a role, enlist or dismiss a worker or give up on it."""
        now = self.clock.now()
        worker = WorkerRecord(owner, "host", 1, None if term else QUEUES, ("echo",), 2, now, now, now + term, 0)
        asks: dict[str, Callable[[Store], object]] = {
            "pause": lambda store: store.pause(queue),
            "resume": lambda store: store.resume(queue),
            "lead": lambda store: store.lead("upkeep", owner, term),
            "enlist": lambda store: store.enlist(worker),
            "dismiss": lambda store: store.dismiss(owner),
            "abandon": lambda store: store.abandon(owner),
        }
        self.both(asks[what])

    @precondition(lambda self: self.subject.capabilities.limits)
    @rule(
        asked=draws.rules,
        what=st.sampled_from(["rule", "rule", "rule", "no rule", "tenant", "kind"]),
        place=draws.places,
    )
    def control(self, asked: Rule, what: str, place: int) -> None:
        """Write a rule or remove it; pause a tenant or a kind, or resume it."""
        name = page_name("queue", asked.queue)
        if what in ("tenant", "kind"):
            name = page_name(what, TENANTS[place % 2] if what == "tenant" else "echo")
        found = self.reference.page(BOOK, name)
        if what == "no rule" or (found is not None and what != "rule"):
            self.both(lambda store: store.remove_page(BOOK, name))
            return
        page = Page(BOOK, name, encoded(Kept(asked)))
        self.both(lambda store: store.write_page(page, found and found.version))

    @rule(
        state=st.none() | st.sampled_from(State),
        fields=draws.filters,
        place=draws.places,
        limit=st.integers(1, 5),
    )
    def find(self, state: State | None, fields: dict[str, Any], place: int, limit: int) -> None:
        """List by any filter."""
        someone = self.known()[place % len(self.known())]
        before, parent = someone if place % 2 else None, someone if place % 5 == 0 else None
        self.both(lambda store: store.find(Query(state=state, before=before, limit=limit, parent=parent, **fields)))

    @invariant()
    def nothing_differs(self) -> None:
        """Compare all that can be seen."""
        ids = self.known()
        found = self.both(lambda store: store.read(ids))
        changed = [id_ for id_, job in zip(ids, found, strict=True) if self.seen.get(id_, id_) != job]
        self.both(lambda store: [(store.attempts(id_), store.steps(id_), store.signals(id_)) for id_ in changed])
        self.seen |= dict(zip(ids, found, strict=True))
        self.both(lambda store: {what: number for what, number in store.counts().items() if number})
        self.both(lambda store: sorted(store.expired(1_000)))
        self.both(lambda store: sorted(store.unsubmitted(SECOND, 1_000)))
        self.both(lambda store: [store.next_due(queues) for queues in (None, ["a"], ["a", "b"], [])])
        self.both(lambda store: store.due_since())
        self.both(lambda store: (store.paused(), sorted(store.workers())))
        if self.subject.capabilities.limits:
            self.both(lambda store: ([store.standing(queue) for queue in (*QUEUES, ALL)], store.overflow(1_000)))
        self.both(lambda store: (store.open_children(ids), store.schedules(), sorted(store.sinks())))
        self.both(lambda store: [store.pages(book) for book in BOOKS])
        self.both(lambda store: (store.accounts(), [sorted(map(repr, store.entries(who, 1_000))) for who in TENANTS]))
        self.both(_told)
        self.remember([job for job in found if job])
        self.moves = [move for move in self.moves[-12:] if not _dreamt(move, found)]

    def pick(self, place: int, *, present: bool) -> JobRecord:
        """Choose a record, as it is now or as it once was; most often of a job that runs, or once ran."""
        held = [job for job in self.past if job.state is State.RUNNING] if place % 3 else []
        choice = held or self.past
        job = choice[place % len(choice)]
        now = self.reference.read([job.id])[0] if present else None
        return now or job

    def decided(self, wills: list[dict[str, Any]], jobs: Sequence[JobRecord] = ()) -> list[Move]:
        """Decide moves and remember them: for any job, or for these in turn, by one who knows what it did before.

        Children of one instant get rising ids, like other jobs.
        """
        self.clock.advance(microseconds=1)
        turns = deque(jobs)
        moves: list[Move] = []
        for will in wills:
            job = turns.popleft() if turns else None
            if move := self.decide(job, **will):
                moves.append(move)
                if job and lifecycle.holds(job, move):
                    job = lifecycle.apply(job, move, self.clock.now())
            turns.extend([job] if job else [])
        self.moves += moves
        return moves

    def decide(
        self,
        job: JobRecord | None,
        *,
        place: int,
        verb: str,
        when: str,
        told: bool,
        carries: bool,
        children: list[NewJob],
        **more: Any,
    ) -> Move | None:
        """Decide a move as somebody would who knows what `when` says: of this verb, or of the next that is legal."""
        job = job or self.pick(place, present=when != "then")
        now = self.clock.now() + 10 * SECOND * (when == "then")
        spawned = self.spawn(job, children) if verb == "suspend" else ()
        first = "undo" if lifecycle.undoing(job) and place % 4 else verb
        verbs = draws.VERBS[draws.VERBS.index(first) :] + draws.VERBS[: draws.VERBS.index(first)]
        decisions = (_decision(job, verb, place, now, spawned, **more) for verb in verbs)
        move = next(filter(None, decisions), None)
        if move is None:
            return None
        if carries and move.step is None and move.verb not in (Verb.COMPLETE, Verb.CHECKPOINT):
            move = move._replace(step=f"~{more['step']}", result=f'"{place}"')
        if told:
            move = events.told(job, move, public=bool(place % 3))
        return _forged(move, place) if when == "forged" else move

    def spawn(self, job: JobRecord, news: list[NewJob]) -> tuple[tuple[str, NewJob], ...]:
        """Give ids to children, as long as there are any."""
        if len(self.spare) - len(news) <= _SPARE:
            return ()
        children = tuple((self.spare.pop(0), new._replace(parent=job.id)) for new in news)
        self.born += [id_ for id_, _ in children]
        return children


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


def _plain(answer: list[Inserted] | Refusal) -> str | list[tuple[JobRecord, bool]]:
    """Make answers comparable: an exception equals only itself, and how a record is kept is a store's own affair."""
    if isinstance(answer, InsufficientCredits):
        return "not enough credits"
    return str(answer) if isinstance(answer, Exception) else [(one.job, one.duplicate) for one in answer]


def _purged(store: Store) -> tuple[int, list[str], int]:
    purged = store.purge(1_000)
    return purged.jobs, sorted(purged.artifacts), purged.pages


def _told(store: Store) -> list[Any]:
    """List events job by job; where they stand among those of other jobs is a store's own affair."""
    told = store.events(0, 10_000)
    return sorted(
        ((event.job_id, event.id, event.name, event.body, event.at) for event in told), key=lambda one: one[0]
    )


def _decision(
    job: JobRecord,
    verb: str,
    place: int,
    now: Micros,
    children: tuple[tuple[str, NewJob], ...],
    *,
    failure: Failure,
    draw: float,
    step: str,
    signal: str,
    delay: Micros,
    heard: int,
    undoable: bool,
    spend: int,
) -> Move | None:
    """Ask the lifecycle; none if it has no such move."""
    awaits = signal if delay else None
    result = f'"{place}"' if place % 7 else '{"$artifact":"out"}'
    decisions: dict[str, Callable[[], Move]] = {
        "submit": lambda: lifecycle.submit(job),
        "start": lambda: lifecycle.start(job),
        "checkpoint": lambda: lifecycle.checkpoint(
            job, step, result, advance=place % 3, undoable=undoable, spend=spend
        ),
        "note": lambda: lifecycle.note(job, f"~{step}", result),
        "complete": lambda: draws.completed(job, step, result if place % 2 else None, place, spend),
        "fail": lambda: lifecycle.fail(job, failure, draw=draw, retention=RETENTION, traceback=step),
        "release": lambda: lifecycle.release(job),
        "snooze": lambda: lifecycle.snooze(job, SECOND),
        "suspend": lambda: lifecycle.suspend(
            job, f"~{step}", result, delay=delay, awaits=awaits, heard=heard, children=children, spend=spend
        ),
        "signal": lambda: lifecycle.signal(job, f"s{place % 4}", signal, result if place % 2 else None),
        "postpone": lambda: lifecycle.postpone(job, delay),
        "undo": lambda: lifecycle.undo(job, RETENTION),
        "reap": lambda: lifecycle.reap(job, now, RETENTION),
        "cancel": lambda: lifecycle.cancel(job, RETENTION),
        "settle_cancel": lambda: lifecycle.settle_cancel(job, RETENTION),
        "redrive": lambda: lifecycle.redrive(job),
    }
    try:
        return decisions[verb]()
    except IllegalMove:
        return None


def _dreamt(move: Move, jobs: Iterable[JobRecord | None]) -> bool:
    """Tell whether a move was decided on a record that never came to be, since a move before it changed nothing."""
    seen = move.guard.version if isinstance(move.guard, Seen) else 0
    return any(job and job.id == move.id and job.version < seen for job in jobs)


def _forged(move: Move, place: int) -> Move:
    """Spoil a guard or an id."""
    guard = move.guard
    if isinstance(guard, Seen):
        return move._replace(guard=Seen(guard.version - 1 - place % 2))
    spoilt = [Held(guard.token + 1, guard.lease_id), Held(guard.token - 1, guard.lease_id), Held(guard.token, "x")]
    return move._replace(guard=spoilt[place % 3])
