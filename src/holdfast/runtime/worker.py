"""The worker: goes back and forth to the store, handing in what is finished and taking what is next, in one
transaction.

On a store that serves several threads at once, a second trip is under way while the first is (`_second`), as long as
jobs are so quick that the trips are what takes the time.

The flow of one job is `_claim wish` → `_dispatch` → the crew runs it → `finish` → `_settle`. Settlements and claims
travel in batches whose size follows the
work (`pace`); nothing is held in a worker that the store does not know to be leased to it.
"""

import logging
import random
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping

from holdfast.client.family import tend
from holdfast.client.logs import about
from holdfast.client.registry import Kind, Registry
from holdfast.client.settings import Settings
from holdfast.domain import events, lifecycle
from holdfast.domain.errors import StoreError
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer, Move
from holdfast.port.clock import Clock
from holdfast.port.store import Claim, Store, TurnedAway
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.crew import Crew
from holdfast.runtime.executor import Executor
from holdfast.runtime.pace import Pace
from holdfast.runtime.shedding import shed

log = logging.getLogger("holdfast.worker")
POLL = 0.5
"""The longest a worker goes without looking for work, in seconds: the fallback for a wake-up that got lost."""
CALLED_POLL = 180.0
"""The same on a store that calls idle workers whatever happens, and where there may be hundreds of them."""
SOON: Micros = 1 * SECOND
"""A worker asked to stop when idle waits for what comes due this soon."""
STALE = 1.0
"""Seconds after which a job that was taken ahead and has not begun is given back."""
_REAPED = 1.0
"""Seconds in which what somebody who is gone held is certainly taken back, once its lease and a round are over."""
_LINGER = 0.02
"""The most seconds that finished jobs wait for more, while there is enough to do."""
_ENOUGH = 0.75
"""The share of what a worker would hold above which it asks for no more."""
_TROUBLE = 0.5
_WAY = 0.0001
"""Seconds for which whoever brings a job to a resting worker leaves the interpreter to the thread that is to run it,
which would wake to find it taken, and have to be woken again."""
_ANSWERED = 1.0
"""The most seconds that a worker which leaves waits for a trip that is under way because of a call."""

Queues = Mapping[str, int | None]


class Worker:
    """One worker process's claims and settlements."""

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the record's own word
        store: Store,
        registry: Registry,
        settings: Settings,
        executor: Executor,
        clock: Clock,
        lease_id: Callable[[], str],
        queues: Queues | None,
        concurrency: int,
    ) -> None:
        self.id = id
        self.queues = queues
        self.concurrency = concurrency
        self.held: dict[str, Attempt] = {}
        """Every claimed job that is not yet settled, by id."""
        self.trouble: str | None = None
        """What the store last complained about, while it does."""
        self.crew = Crew(
            store=store,
            settings=settings,
            executor=executor,
            clock=clock,
            concurrency=concurrency,
            mixed=len({kind.run_in for kind in registry.every()}) > 1,
            finish=self.finish,
            idle=self._idle,
        )
        self._store = store
        self._registry = registry
        self._settings = settings
        self._executor = executor
        self.watch = executor.watch
        self.reached = clock.monotonic()
        """When the last trip that the store answered was made."""
        self._clock = clock
        self._lease_id = lease_id
        self._capped = queues is not None and any(most is not None for most in queues.values())
        trips = 2 if store.capabilities.concurrent else 1
        self._pace = Pace(concurrency, clock.monotonic(), prefetch=not self._capped, trips=trips)
        self._finished: deque[Attempt] = deque()
        self._worth = 0
        """How many finished jobs are worth a trip."""
        self._unanswered: list[str] = []
        """Lease ids of claims that were never answered: asked for again, what such a claim took is given back to us."""
        self._asked = 0
        """How many jobs trips under way have asked for."""
        self._handed = 0
        """How many finished jobs are on their way with them."""
        self._trips = 0
        """How many trips were begun."""
        self._hands = threading.Lock()
        """Held by a trip while it takes or brings, never while it is under way."""
        self._busy = threading.Event()
        self._at_once = trips
        """How many trips may be under way."""
        self._nudge = threading.Event()
        self._callable = store.capabilities.concurrent and store.capabilities.strict_order
        """Who hears a call may answer it: in a trip beside others, which brings all that there is for it."""
        self._resting = False
        """Nothing is to be done until somebody calls, who may answer it."""
        self._ahead: tuple[int, Claim | None] = (-1, None)
        """What a trip wishes that is made because of a call, thought of before; and how many trips had been begun."""
        self._calling = threading.Lock()
        """Held while a call is answered."""
        self._failure: BaseException | None = None
        """What went wrong with that beyond what a store may refuse."""
        self._draining = False
        self._idle_since: float | None = None
        self._dispatched_at = self._brought_at = clock.monotonic()

    def run(self, *, until_idle: bool = False) -> None:
        """Work until told to drain or, if asked, until nothing is left to do."""
        ended = threading.Event()
        second = threading.Thread(target=self._second, args=(ended,), name="holdfast-second", daemon=True)
        if self._store.capabilities.concurrent:
            second.start()
        try:
            while not self._draining:
                if self._failure is not None:
                    raise self._failure
                self._linger()
                self._give_back_stale()
                if self._trip(claim=True) or self._draining:
                    continue
                if until_idle and self._is_idle():
                    return
                self._rest(called=self._store.capabilities.calls and not until_idle)
        finally:
            ended.set()
            self._busy.set()

    def _second(self, ended: threading.Event) -> None:
        """Make trips beside the first, while there is so much to do that one at a time would hold it up."""
        while not ended.is_set():
            self._busy.wait()
            self._busy.clear()
            while self._asked and self._pace.quick and not self._draining and not ended.is_set():
                if not self._room() and (not self._finished or self.crew.waiting()):
                    self._busy.wait(_LINGER)
                    self._busy.clear()
                elif not self._trip(claim=True):
                    break

    def drain(self) -> None:
        """Claim nothing more. Safe to call from a signal handler."""
        self._draining = True
        self._nudge.set()

    def nudge(self) -> None:
        """Look for work now."""
        self._nudge.set()
        if self._asked:
            self._busy.set()

    def called(self, *, free: bool) -> Attempt | None:
        """Look for work because the store says that there is some; a worker that rests need not be woken for it.

        Whoever heard the call makes the trip. If it brings one job, that was what the call was for; else there may be
        more, or something is wrong, and both are the worker's own to see to. Whoever is `free` to run that one job is
        given it, if it is welcome (see `Crew`): to hand it over would take longer than to begin.
        """
        own: list[Attempt] | None = [] if free else None
        with self._calling:
            try:
                rests = self._resting and not self._draining
                done = rests and self._trip(claim=True, own=own) <= 1 and not self.trouble
            except BaseException as error:  # noqa: BLE001 - raised again by the worker, which ends by it
                self._failure, done = error, False
        if not done:
            self.nudge()
        return own[0] if own else None

    def _idle(self) -> None:
        """Look for work, because a lane has nothing to take."""
        if len(self.held) - self._handed <= len(self._finished):
            self._pace.ran_dry(self._clock.monotonic())
        self.nudge()

    def finish(self, attempt: Attempt, move: Move | None) -> None:
        """Hand in an attempt's outcome, once; called from every lane. No move means that nothing may be written."""
        if attempt.settled:
            return
        attempt.settled = True
        if self.watch is not None:
            self.watch.finished(attempt, move)
        job = attempt.job
        if move is not None and (self._settings.events or job.parent is not None or job.flow is not None):
            move = events.told(job, move, public=self._settings.events)
        attempt.outcome = move
        self._finished.append(attempt)
        if len(self._finished) in (1, self._worth):
            self.nudge()

    def give_back(self) -> None:
        """Release every claimed job that has not begun."""
        self.crew.closing = True
        if self._calling.acquire(timeout=_ANSWERED):  # what a call is bringing goes back, too
            self._calling.release()
        for attempt in self.crew.take_back():
            self.finish(attempt, lifecycle.release(attempt.job))

    def _give_back_stale(self) -> None:
        """Let others have what was taken ahead, if quick jobs have turned slow and it would wait here for long."""
        if self.crew.waiting() and self._clock.monotonic() - self._dispatched_at > STALE:
            self._pace.misjudged()
            for attempt in self.crew.take_back():
                self.finish(attempt, lifecycle.release(attempt.job))

    def settle(self, wait: float) -> bool:
        """Hand in what is finished, after waiting this long for something to be; true once nothing is held any more."""
        if self.held and not self._finished:
            self._nudge.wait(wait)
        self._nudge.clear()
        self._trip(claim=False)
        return not self.held

    def _linger(self) -> None:
        """Let more jobs finish before a trip, while there is enough in hand to keep every lane busy; or those that were
        brought a moment ago, where a trip takes much longer.
        """
        until = self._clock.monotonic() + _LINGER
        soon = min(self._brought_at + self._pace.patience, until)
        while not self._draining and len(self.held) > self._handed + len(self._finished):
            self._nudge.clear()
            enough = self._finished and self.crew.waiting() and not self._room()
            left = (until if enough else soon) - self._clock.monotonic()
            if left <= 0 or not self._nudge.wait(left):
                return

    def _room(self) -> int:
        """How many jobs to ask for: none while most of what we would hold is in hand, or on its way. Where there is one
        trip at a time it fetches half, where there are two each fetches a third, so that there is something to run
        while they are under way.
        """
        hold, mine = self._pace.hold, len(self.held) + self._asked - self._handed
        held = mine - len(self._finished)
        enough = max(int(hold * _ENOUGH), self.concurrency - 1)
        if held > enough:
            self._worth = mine - enough
            return 0
        return min(hold - held, max(hold // (self._at_once + 1), self.concurrency))

    def _trip(self, *, claim: bool, own: list[Attempt] | None = None) -> int:
        """Hand in and, if there is room, take; give the number of jobs taken. If only one is, it may be left to the
        caller, as its `own`.
        """
        with self._hands:
            batch = self._to_hand_in() if self._finished else []
            want = self._wished() if claim else None
            asked = 0 if want is None else want.limit
            self._asked += asked
            self._trips += 1
        moves = [attempt.outcome for attempt in batch if attempt.outcome is not None]
        told = [attempt.job for attempt in batch if attempt.outcome] if any(move.events for move in moves) else []
        sent = self._clock.monotonic()
        if self.held and self._pace.quick:
            self._busy.set()
        claimed: list[JobRecord] = []
        answers: list[Answer] = []
        try:
            if want is not None:
                answers, claimed = self._store.exchange(moves, want)
            elif moves:
                answers = self._store.commit(moves)
        except StoreError as error:
            with self._hands:
                self._asked -= asked
                self._handed -= len(batch)
                if want is not None:
                    self._unanswered.append(want.lease_id)
                self._finished.extendleft(reversed(batch))
            self._complain(error)
            return 0
        self.trouble = None
        self.reached = sent
        with self._hands:
            self._asked -= asked
            self._handed -= len(batch)
            self._pace.travelled(self._clock.monotonic() - sent, len(batch) + len(claimed))
            if batch:
                self._settle(batch, answers)
            if want is not None:
                self._pace.asked(admitted=not isinstance(claimed, TurnedAway))
                self._dispatch(claimed, sent, own)
        if told:
            self._tend(told, moves, answers)
        if want is not None:
            self._shed()
        return len(claimed)

    def _to_hand_in(self) -> list[Attempt]:
        batch = [self._finished.popleft() for _ in range(len(self._finished))]
        self._handed += len(batch)
        self._pace.finished(len(batch), self._clock.monotonic())
        return batch

    def _wished(self) -> Claim | None:
        """Give the wish that was thought of before, if nothing has changed since."""
        trips, want = self._ahead
        return want if trips == self._trips and not self._handed and not self._unanswered else self._wish()

    def _wish(self) -> Claim | None:
        room = self._room()
        queues = self._open(room)
        if room <= 0 or queues == {}:
            return None
        lease_id = self._unanswered.pop() if self._unanswered else self._lease_id()
        return Claim(self.id, lease_id, self._settings.lease, room, queues, defers=True)

    def _open(self, room: int) -> dict[str, int] | None:
        """Give how many jobs there is room for in each queue that is not full here; none, if queues do not matter."""
        if self.queues is None:
            return None
        taken = Counter(attempt.job.queue for attempt in self.held.values()) if self._capped else Counter()
        most = {name: room if most is None else min(room, most - taken[name]) for name, most in self.queues.items()}
        return {name: room for name, room in most.items() if room > 0}

    def _dispatch(self, claimed: list[JobRecord], sent: float, own: list[Attempt] | None = None) -> None:
        if not claimed:
            if not self.held:
                self._pace.rested()
            return
        lanes: dict[str, list[Attempt]] = defaultdict(list)
        held = self.held
        kind: Kind | None = None
        for job in claimed:
            if kind is None or kind.name != job.kind or kind.code_version != job.code_version:
                kind = self._registry.get(job.kind, job.code_version)
            attempt = held[job.id] = Attempt(job, kind, sent)
            if kind is None:
                self.finish(attempt, self._executor.unknown_kind(job, self._store.now()))
            else:
                lanes[kind.run_in].append(attempt)
        if self.watch is not None:
            self.watch.claimed([held[job.id] for job in claimed])
        self._dispatched_at = sent
        self._pace.fed(self._clock.monotonic())
        for mode, attempts in lanes.items():
            if own is not None and len(claimed) == 1 and self.crew.welcomes(attempts[0]):
                own.append(attempts[0])
            else:
                self.crew.put(mode, attempts)
                if self._resting:
                    time.sleep(_WAY)
        self._brought_at = self._clock.monotonic()

    def _settle(self, batch: list[Attempt], answers: list[Answer]) -> None:
        if len(answers) == len(batch) and answers.count(Answer.OK) == len(batch):
            held = self.held
            if self.watch is not None:
                self.watch.settled([(attempt, attempt.outcome) for attempt in batch if attempt.outcome is not None])
            for attempt in batch:
                attempt.outcome = None
                if held.get(attempt.job.id) is attempt:  # the other trip may have claimed its job again meanwhile
                    del held[attempt.job.id]
            return
        replies = iter(answers)
        for attempt in batch:
            move, attempt.outcome = attempt.outcome, None
            answer = Answer.OK if move is None else next(replies)
            if answer in (Answer.CANCEL_REQUESTED, Answer.UNPAID):
                attempt.settled = False
                self.finish(attempt, self._instead(attempt, answer))
                continue
            if self.held.get(attempt.job.id) is attempt:
                del self.held[attempt.job.id]
            if move is not None and answer is not Answer.OK:
                text = "job %s: a late %s was refused (%s)"
                log.warning(text, attempt.job.id, move.verb, answer, extra=about(attempt.job))
            if move is not None and self.watch is not None:
                self.watch.answered(attempt, move, answer)

    def _instead(self, attempt: Attempt, answer: Answer) -> Move:
        """Settle an attempt whose outcome cannot be: cancelled meanwhile, or too dear."""
        if answer is Answer.UNPAID:
            return self._executor.unpaid(attempt)
        return lifecycle.settle_cancel(attempt.job, self._settings.retention)

    def _tend(self, jobs: list[JobRecord], moves: list[Move], answers: list[Answer]) -> None:
        """Do for families what the ends of their members ask for; if that fails, upkeep does it."""
        ends = zip(jobs, moves, answers, strict=True)
        written = [(job, move) for job, move, answer in ends if answer is Answer.OK]
        try:
            tend(self._store, self._settings.retention, written, public=self._settings.events)
        except StoreError as error:
            self._complain(error)

    def _shed(self) -> None:
        """Cancel what is beyond full limits; if that fails, the next trip does it."""
        try:
            shed(self._store, self._settings)
        except StoreError as error:
            self._complain(error)

    def _rest(self, *, called: bool) -> None:
        """Wait for a reason to make another trip."""
        if self.trouble:
            self._nudge.clear()
            self._nudge.wait(_TROUBLE)
            return
        if self._finished:
            return
        timeout = CALLED_POLL if called else POLL
        if not called and (due := self._next_wanted()) is not None:
            timeout = min(POLL, max(0.0, (due - self._store.now()) / SECOND))
        if away := self._pace.away:  # not all who were turned away come again at once
            timeout = min(away * random.uniform(0.5, 1.0), CALLED_POLL if called else POLL)  # noqa: S311
        if called and self._callable:
            self._think_ahead()
        self._resting = called and self._callable
        self._nudge.wait(timeout)
        self._resting = False
        self._nudge.clear()

    def _think_ahead(self) -> None:
        """Think of what the next trip wishes, so that it need not be done when somebody calls."""
        with self._hands:
            if not self._unanswered:
                self._ahead = (self._trips, self._wish())

    def _is_idle(self) -> bool:
        """Tell whether nothing is in hand, on its way or due soon: a trip begun meanwhile may have taken what was."""
        trips = self._trips
        due = None if self._has_work() else self._next_due(self.queues)
        if self._has_work() or (due is not None and due <= self._store.now() + SOON) or self._trips != trips:
            self._idle_since = None
            return False
        return self._is_deserted()

    def _is_deserted(self) -> bool:
        """Tell whether nobody who is gone can hold a job here: a lease that lasts, another worker has renewed."""
        if self._idle_since is None:
            self._idle_since = self._clock.monotonic()
        patience = (self._settings.lease + 2 * self._settings.upkeep) / SECOND + _REAPED
        return self._clock.monotonic() - self._idle_since > patience or not self._others_run()

    def _others_run(self) -> bool:
        """Tell whether jobs run here; where numbers are not exact, and cost something, nobody is waited for."""
        if not self._store.capabilities.exact_counts:
            return False
        try:
            counts = self._store.counts()
        except StoreError as error:
            self._complain(error)
            return True
        served = self.queues
        return any(
            jobs > 0 and state is State.RUNNING and (served is None or queue in served)
            for (queue, state), jobs in counts.items()
        )

    def _has_work(self) -> bool:
        with self._hands:
            return bool(self.held or self._finished or self._asked or self.trouble)

    def _next_wanted(self) -> Micros | None:
        """Tell when a job comes due that there is room for."""
        with self._hands:
            room = self._room()
            queues = self._open(room)
        return None if room <= 0 or queues == {} else self._next_due(queues)

    def _next_due(self, queues: Collection[str] | None) -> Micros | None:
        try:
            return self._store.next_due(None if queues is None else list(queues))
        except StoreError as error:
            self._complain(error)
            return None

    def _complain(self, error: StoreError) -> None:
        if self.trouble != str(error):
            log.error("%s Trying again.", error)
        self.trouble = str(error)
