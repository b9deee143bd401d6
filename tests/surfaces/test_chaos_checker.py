"""The checker of `holdfast chaos` is worth something only if it can fail: for each promise, histories that must not
pass.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from holdfast.chaos.checker import CHECKS, prove
from holdfast.chaos.history import Fault, History, Offer
from holdfast.chaos.ledger import Entry, Word
from holdfast.chaos.plan import CRASH_CAP, HOPELESS, LASTING, NAP, NAPPING, STEPS, Orders, Task, make, step
from holdfast.chaos.show import as_json, outcome, report
from holdfast.domain import audit, history, lifecycle
from holdfast.domain.job import AttemptRecord, Cause, Failure, NewJob, Retention, State, StepRecord
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Move
from holdfast.port.store import Finding

START: Micros = 1_767_225_600_000_000
LEASE: Micros = 2 * SECOND
LIMIT: Micros = 5 * SECOND
RETENTION = Retention()
FLAKY = Failure("connection_refused_error", "raised", retryable=True)
IMPOSSIBLE = Failure("impossible", "nobody can do this", retryable=False)
ORDERS = Orders(jobs=7, workers=2, kills=1, freezes=1, seed=7)
WORK, KEYED, FLAKED, REJECTED, EXHAUSTED, PIPE, FLOW = TASKS = (
    Task(0, "work", 0.1),
    Task(1, "awork", 0.1, key="awork:1"),
    Task(2, "flaky", 0.1, misses=1),
    Task(3, "reject", 0.1),
    Task(4, "hopeless", 0.1),
    Task(5, "pipe", 0.1),
    Task(6, "flow", 0.1),
)


class Life:
    """One job taken through its life by the lifecycle itself, with what its bodies write into the ledger."""

    def __init__(self, task: Task) -> None:
        self.now = START
        self.task = task
        policy = HOPELESS if task is EXHAUSTED else LASTING
        new = NewJob(
            task.kind,
            json.dumps(task.payload),
            key=task.key,
            retry=policy.spec,
            max_attempts=policy.max_attempts,
            crash_cap=CRASH_CAP,
            steps_total=STEPS if task.kind == "pipe" else 0,
        )
        self.job = lifecycle.create(f"id-{task.number}", new, self.now)
        self.attempts: list[AttemptRecord] = []
        self.ledger: list[Entry] = []
        self.steps: list[StepRecord] = []

    def claim(self, owner: str = "worker-1") -> None:
        self.now = max(self.now, self.job.available_at) + 1
        lease_id = f"lease-{self.job.token + 1}"
        self.job = lifecycle.claim(self.job, lease_id=lease_id, owner=owner, lease=LEASE, now=self.now)
        if lifecycle.must_record_start(self.job):
            self.settle(lifecycle.start(self.job))
        if self.task.kind != "pipe":
            self.write("begin")

    def settle(self, move: Move) -> None:
        self.now += 1
        if ended := history.ended_attempt(self.job, move, self.now):
            self.attempts.append(ended)
        if move.step is not None:
            self.steps.append(StepRecord(move.step, move.result, self.now))
        self.job = lifecycle.apply(self.job, move, self.now)

    def fail(self, failure: Failure) -> None:
        self.claim()
        self.settle(lifecycle.fail(self.job, failure, draw=0, retention=RETENTION))

    def lose(self) -> Fault:
        """Let the worker be struck and the job be taken back."""
        fault = Fault("kill", self.job.lease_owner or "", self.now, {self.job.id: self.job.token})
        self.now += LEASE
        self.settle(lifecycle.reap(self.job, self.now, RETENTION))
        return fault

    def begin(self, place: int) -> None:
        self.write("begin", step(place), json.loads(self.steps[-1].result or "") if place else "")

    def record(self, *places: int) -> None:
        for place in places:
            self.begin(place)
            receipt = f"receipt-{place}-of-{self.task.number}"
            self.write("done", step(place), receipt)
            self.settle(lifecycle.checkpoint(self.job, step(place), json.dumps(receipt)))

    def nap(self) -> None:
        self.settle(lifecycle.suspend(self.job, "nap", None, delay=NAP, advance=1))

    def succeed(self, result: str) -> None:
        if self.task.kind != "pipe":
            self.write("done", "", result)
        self.settle(lifecycle.complete(self.job, json.dumps(result), RETENTION))
        self.attempts += filter(None, [history.last_attempt(self.job)])

    def write(self, word: Word, step: str = "", note: str = "", token: int = 0) -> None:
        worker = self.job.lease_owner or ""
        self.ledger.append(Entry(self.now, word, self.job.id, token or self.job.token, step, worker, note))


def lived() -> tuple[list[Life], list[Fault]]:
    lives = [Life(task) for task in TASKS]
    work, keyed, flaked, rejected, exhausted, pipe, flow = lives
    work.claim("worker-2")
    killed = work.lose()
    work.claim()
    work.succeed("receipt-of-0")
    keyed.claim()
    keyed.succeed("receipt-of-1")
    flaked.fail(FLAKY)
    flaked.claim()
    flaked.succeed("receipt-of-2")
    rejected.fail(IMPOSSIBLE)
    for _ in range(HOPELESS.max_attempts):
        exhausted.fail(FLAKY)
    pipe.claim("worker-3")
    pipe.record(0, 1)
    pipe.begin(2)
    frozen = pipe.lose()._replace(sort="freeze")
    pipe.claim()
    pipe.write("done", step(2), "the zombie's receipt", token=1)
    pipe.write("refused", note="checkpoint", token=1)
    pipe.record(2, 3, 4)
    pipe.succeed("receipt-4-of-5")
    flow.claim()
    flow.record(0, 1, 2)
    flow.nap()
    flow.claim()
    flow.steps, napped = flow.steps[:3], flow.steps[3:]
    flow.record(3, 4)
    flow.steps[3:3] = napped
    flow.succeed("all of the receipts")
    return lives, [killed, frozen]


def good() -> History:
    """A run in which all went as it should."""
    lives, faults = lived()
    records = [life.job for life in lives]
    return History(
        orders=ORDERS,
        tasks=TASKS,
        offers=[
            *(Offer(life.task.number, life.job.id) for life in lives),
            Offer(KEYED.number, "id-1", duplicate=True),
            Offer(KEYED.number, None, other=True),
        ],
        records=records,
        attempts={life.job.id: life.attempts for life in lives},
        steps={life.job.id: life.steps for life in lives if life.steps},
        finals={job.id: job for job in records},
        ledger=[entry for life in lives for entry in life.ledger],
        faults=faults,
        strays=[],
        backwards=[],
        missed=[],
        findings=[],
        violations=[],
        return_limit=LIMIT,
    )


def with_job(seen: History, task: Task, /, **fields: Any) -> History:
    number = task.number
    return replace(seen, records=[job._replace(**fields) if job.id == f"id-{number}" else job for job in seen.records])


def without_job(seen: History, task: Task) -> History:
    return replace(seen, records=[job for job in seen.records if job.id != f"id-{task.number}"])


def with_attempt(seen: History, task: Task, number: int, **fields: Any) -> History:
    id_ = f"id-{task.number}"
    changed = list(seen.attempts[id_])
    changed[number] = changed[number]._replace(**fields)
    return replace(seen, attempts={**seen.attempts, id_: changed})


def with_entry(seen: History, task: Task, word: Word, token: int, step: str = "", *, note: str = "") -> History:
    entry = Entry(START, word, f"id-{task.number}", token, step, "worker-1", note)
    return replace(seen, ledger=[*seen.ledger, entry])


def with_steps(seen: History, task: Task, change: Callable[[Sequence[StepRecord]], Sequence[StepRecord]]) -> History:
    id_ = f"id-{task.number}"
    return replace(seen, steps={**seen.steps, id_: change(seen.steps[id_])})


def with_result(seen: History, task: Task, place: int, result: str) -> History:
    name = step(place)
    return with_steps(
        seen, task, lambda found: [one._replace(result=result) if one.name == name else one for one in found]
    )


def with_offer(seen: History, *offers: Offer) -> History:
    return replace(seen, offers=[*seen.offers, *offers])


Harm = Callable[[History], History]

HARMS: dict[str, tuple[str, Harm]] = {
    "an accepted job is gone": ("S1", lambda seen: without_job(seen, WORK)),
    "a job was never answered": (
        "S1",
        lambda seen: replace(seen, offers=[offer for offer in seen.offers if offer.number != WORK.number]),
    ),
    "a job is left running": ("S1", lambda seen: with_job(seen, WORK, state=State.RUNNING)),
    "a look missed a job": ("S1", lambda seen: replace(seen, missed=["work id-0"])),
    "a job that nobody asked for": ("S2", lambda seen: with_job(seen, WORK, id="another")),
    "a body of a job that is not stored": ("S2", lambda seen: without_job(seen, WORK)),
    "a job with another payload": ("S2", lambda seen: with_job(seen, WORK, payload="{}")),
    "a job of another kind": ("S2", lambda seen: with_job(seen, WORK, kind="awork")),
    "a key has two jobs": ("S6", lambda seen: with_job(seen, WORK, key=KEYED.key)),
    "a key was answered with two jobs": (
        "S6",
        lambda seen: with_offer(seen, Offer(KEYED.number, "another", duplicate=True)),
    ),
    "a key was let through twice": ("S6", lambda seen: with_offer(seen, Offer(KEYED.number, "id-1"))),
    "a key was let through with another payload": (
        "S6",
        lambda seen: with_offer(seen, Offer(KEYED.number, "id-1", duplicate=True, other=True)),
    ),
    "no key was put to the test": ("S6", lambda seen: replace(seen, offers=seen.offers[:-2])),
    "two workers held a job at once": ("S8", lambda seen: with_attempt(seen, WORK, 1, claimed_at=START)),
    "a lease is missing": ("S8", lambda seen: with_attempt(seen, WORK, 1, token=7)),
    "a result that no body returned": ("S9", lambda seen: with_job(seen, WORK, result='"stolen"')),
    "a result of an earlier lease": ("S9", lambda seen: with_entry(seen, WORK, "done", 1, note="receipt-of-0")),
    "a pipeline's result that is not its last step's": ("S9", lambda seen: with_job(seen, PIPE, result='"stolen"')),
    "a job completed twice": ("S9", lambda seen: with_attempt(seen, WORK, 0, outcome="complete")),
    "a refused write that counted": ("S9", lambda seen: with_entry(seen, WORK, "refused", 2, note="complete")),
    "an illegal record": ("S14", lambda seen: replace(seen, violations=[Finding("S14", "id-0", "It is odd.")])),
    "a cursor that went back": ("S14", lambda seen: replace(seen, backwards=["pipe went back"])),
    "a finished job changed": ("S15", lambda seen: with_job(seen, WORK, updated_at=START)),
    "a finished job vanished": ("S15", lambda seen: without_job(seen, WORK)),
    "nobody was watching": ("S15", lambda seen: replace(seen, finals={})),
    "a retry did not wait": ("S17", lambda seen: with_attempt(seen, FLAKED, 1, claimed_at=START + 10)),
    "a sleep was cut short": ("S17", lambda seen: with_attempt(seen, FLOW, 1, claimed_at=START + 10)),
    "a body began twice under one lease": ("S18", lambda seen: with_entry(seen, WORK, "begin", 2)),
    "a body began under no lease": ("S18", lambda seen: with_entry(seen, WORK, "begin", 3)),
    "one attempt too many": ("S18", lambda seen: with_job(seen, EXHAUSTED, attempt=HOPELESS.max_attempts + 1)),
    "a flaky job did not fail": ("S19", lambda seen: with_attempt(seen, FLAKED, 0, outcome="complete")),
    "a good job failed": ("S19", lambda seen: with_attempt(seen, WORK, 1, outcome="fail")),
    "a plain job slept": ("S19", lambda seen: with_attempt(seen, WORK, 0, outcome="snooze")),
    "a rejected job was claimed again": ("S19", lambda seen: with_job(seen, REJECTED, token=2)),
    "a pipeline succeeded before its end": ("S20", lambda seen: with_job(seen, PIPE, step_cursor=STEPS - 1)),
    "a workflow counted a step twice": ("S20", lambda seen: with_job(seen, FLOW, step_cursor=STEPS + 2)),
    "a pipeline of another length": ("S20", lambda seen: with_job(seen, PIPE, steps_total=STEPS + 1)),
    "a recorded step ran again": (
        "S21",
        lambda seen: with_entry(seen, PIPE, "begin", 2, step(1), note="receipt-0-of-5"),
    ),
    "a step's result changed": ("S22", lambda seen: with_result(seen, FLOW, 1, '"another"')),
    "a zombie's result was recorded": ("S22", lambda seen: with_result(seen, PIPE, 2, '"the zombie\'s receipt"')),
    "a step was given another result": (
        "S22",
        lambda seen: with_entry(seen, PIPE, "begin", 1, step(1), note="something else"),
    ),
    "a step is on record twice": ("S22", lambda seen: with_steps(seen, PIPE, lambda found: [*found, found[0]])),
    "a step is not on record": ("S22", lambda seen: with_steps(seen, PIPE, lambda found: found[:-1])),
    "a step began before the one before it was recorded": (
        "S23",
        lambda seen: with_entry(seen, PIPE, "begin", 1, step(4), note="receipt-3-of-5"),
    ),
    "steps were recorded in another order": (
        "S23",
        lambda seen: with_steps(seen, PIPE, lambda found: [found[1], found[0], *found[2:]]),
    ),
    "a dead letter that should live": ("S26", lambda seen: with_job(seen, WORK, state=State.DEAD)),
    "a dead letter is missing": ("S26", lambda seen: with_job(seen, REJECTED, state=State.SUCCEEDED)),
    "a dead letter of the wrong cause": ("S26", lambda seen: with_job(seen, EXHAUSTED, cause=Cause.CRASHED)),
    "a dead letter without a reason": ("S26", lambda seen: with_job(seen, REJECTED, failure_code=None)),
    "a dead letter without its history": ("S26", lambda seen: with_job(seen, EXHAUSTED, token=9)),
    "lost work stayed away": ("L2", lambda seen: with_attempt(seen, WORK, 0, ended_at=START + 60 * SECOND)),
    "lost work never came back": (
        "L2",
        lambda seen: replace(seen, faults=[*seen.faults, Fault("kill", "worker-9", START, {"id-0": 7})]),
    ),
    "a worker ended by itself": ("L2", lambda seen: replace(seen, strays=["worker-9 ended"])),
    "the store's check found something": (
        "S36",
        lambda seen: replace(seen, findings=[Finding("S36", None, "A counter is wrong.")]),
    ),
}


def holding(seen: History) -> dict[str, bool]:
    return {verdict.promise: verdict.holds for verdict in prove(seen)}


def test_a_run_in_which_all_went_well_holds_every_promise() -> None:
    assert [verdict for verdict in prove(good()) if not verdict.holds] == []


def test_the_run_in_which_all_went_well_could_have_happened() -> None:
    for life in lived()[0]:
        ended = [attempt for attempt in life.attempts if attempt.outcome != "complete"]
        assert audit.violations(life.job, ended, life.now) == []


@pytest.mark.parametrize("what", HARMS)
def test_a_broken_promise_is_seen(what: str) -> None:
    promise, harm = HARMS[what]
    assert not holding(harm(good()))[promise]


def test_every_promise_that_is_checked_can_be_broken() -> None:
    assert {promise for promise, _ in HARMS.values()} == holding(good()).keys()
    assert len(CHECKS) == len(holding(good()))


def test_what_the_run_came_to_is_counted() -> None:
    counts = good().counts()
    assert (counts.jobs, counts.succeeded, counts.dead, counts.kills, counts.freezes) == (7, 5, 2, 1, 1)
    assert (counts.attempts, counts.taken_over, counts.run_again, counts.refused) == (13, 2, 2, 1)


def test_a_heartbeat_that_crosses_its_own_jobs_success_is_no_late_write() -> None:
    assert with_entry(good(), WORK, "refused", 2, note="heartbeat").counts().refused == 1


def test_a_fault_that_was_asked_for_and_not_seen_makes_the_run_void() -> None:
    seen = replace(good(), faults=good().faults[:1])
    assert seen.void == ["1 workers were to be frozen until its work was taken over, and 0 were"]
    assert outcome(prove(seen), seen) == "void"
    assert outcome(prove(good()), good()) == "holds"


def test_a_broken_promise_weighs_more_than_a_fault_that_was_not_seen() -> None:
    seen = without_job(replace(good(), faults=[]), WORK)
    assert outcome(prove(seen), seen) == "broken"


def test_the_report_says_what_is_broken_and_how_to_try_again() -> None:
    console = Console(record=True, width=80, file=StringIO())
    assert report(console, good(), 1.5, "holdfast chaos --seed 7") == "holds"
    assert report(console, without_job(good(), WORK), 1.5, "holdfast chaos --seed 7") == "broken"
    assert report(console, replace(good(), faults=[]), 1.5, "holdfast chaos --seed 7") == "void"
    text = console.export_text()
    assert "17 of 17 promises kept" in text
    assert "Verdict: every promise held." in text
    assert "✗  S1   no job lost           job 0 was accepted and is gone" in text
    assert "Verdict: a promise is broken. The same plan again: holdfast chaos --seed 7" in text
    assert "Verdict: void, for 1 workers were to be killed at work, and 0 were" in text
    assert max(map(len, text.partition("Verdict")[0].splitlines())) <= 80


def test_the_report_in_json_says_the_same() -> None:
    told = as_json(without_job(good(), WORK), 1.5)
    assert (told["verdict"], told["asked"]["seed"], told["counts"]["kills"]) == ("broken", 7, 1)
    (lost,) = [each for each in told["promises"] if each["promise"] == "S1"]
    assert (lost["holds"], lost["wrong"]) == (False, ["job 0 was accepted and is gone"])


@pytest.mark.parametrize(("jobs", "kills", "freezes"), [(20, 0, 0), (60, 2, 1), (300, 6, 2), (2_000, 50, 10)])
def test_the_plan_comes_to_exactly_what_was_asked_for(jobs: int, kills: int, freezes: int) -> None:
    plan = make(Orders(jobs, 3, kills, freezes, 7))
    assert [task.number for task in plan.tasks] == list(range(jobs))
    assert sorted(strike.sort for strike in plan.strikes) == ["freeze"] * freezes + ["kill"] * kills
    assert len(plan.shares) == len(plan.strikes) + 1
    assert {task.kind for task in plan.tasks} >= NAPPING | {"work", "awork", "flaky", "pipe"}


def test_the_same_seed_makes_the_same_plan() -> None:
    assert make(Orders(60, 3, 2, 1, 7)) == make(Orders(60, 3, 2, 1, 7))
    assert make(Orders(60, 3, 2, 1, 7)) != make(Orders(60, 3, 2, 1, 8))
