"""The demo's proof is worth something only if it can fail: for each line of the table, runs that must not pass."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from holdfast.demo.evidence import Accepted, Death, Evidence
from holdfast.demo.ledger import Entry, Word
from holdfast.demo.plan import CALLS, STAGES, SUMMARY_AFTER, Fate
from holdfast.demo.proof import CHECKS, prove
from holdfast.demo.show import report
from holdfast.domain import history, lifecycle
from holdfast.domain.job import AttemptRecord, Cause, Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Move
from holdfast.domain.retry import Retry
from holdfast.port.store import Finding

START: Micros = 1_767_225_600_000_000
LEASE: Micros = 3 * SECOND
LIMIT: Micros = 5 * SECOND
RETENTION = Retention()
FLAKY = Failure("connection_refused_error", "raised", retryable=True)
UNREADABLE = Failure("unsupported_format", "no reader", retryable=False)

FATES = (
    Fate("fetch:letter"),
    Fate("webhook:1", misses=2),
    Fate("webhook:2", State.DEAD, Cause.EXHAUSTED, CALLS.max_attempts),
    Fate("ocr:minutes", State.DEAD, Cause.REJECTED),
    Fate("ocr:poison", State.DEAD, Cause.CRASHED),
    Fate("summary:1", delay=SUMMARY_AFTER),
)


class Run:
    """One job taken through its life by the lifecycle itself, with what its handler writes into the ledger."""

    def __init__(self, fate: Fate, retry: Retry) -> None:
        self.now = START
        new = NewJob("kind", "{}", key=fate.key, retry=retry.spec, max_attempts=retry.max_attempts, delay=fate.delay)
        self.job = lifecycle.create(f"id-of-{fate.key}", new, self.now)
        self.attempts: list[AttemptRecord] = []
        self.ledger: list[Entry] = []

    def claim(self, owner: str = "worker-1") -> None:
        self.now = max(self.now, self.job.available_at) + 1
        lease_id = f"lease-{self.job.token + 1}"
        self.job = lifecycle.claim(self.job, lease_id=lease_id, owner=owner, lease=LEASE, now=self.now)
        if lifecycle.must_record_start(self.job):
            self.settle(lifecycle.start(self.job))
        self.write("begin")

    def settle(self, move: Move) -> None:
        self.now += 1
        if ended := history.ended_attempt(self.job, move, self.now):
            self.attempts.append(ended)
        self.job = lifecycle.apply(self.job, move, self.now)

    def fail(self, failure: Failure) -> None:
        self.claim()
        self.settle(lifecycle.fail(self.job, failure, draw=0, retention=RETENTION))

    def crash(self, owner: str, *, fatal: bool = False) -> Death:
        self.claim(owner)
        if fatal:
            self.write("fatal")
        died = self.now
        self.now += LEASE
        self.settle(lifecycle.reap(self.job, self.now, RETENTION))
        return Death(owner, died, "poison" if fatal else "demo")

    def succeed(self) -> None:
        self.claim()
        receipt = f"receipt-{self.job.key}"
        self.write("done", receipt)
        self.settle(lifecycle.complete(self.job, f'"{receipt}"', RETENTION))
        if won := history.last_attempt(self.job):
            self.attempts.append(won)

    def write(self, word: Word, note: str = "") -> None:
        self.ledger.append(Entry(self.now, word, self.job.id, self.job.attempt, self.job.lease_owner or "", note))


def good() -> Evidence:
    """A run in which all went as it should."""
    runs = {fate.key: Run(fate, CALLS if fate.key.startswith("webhook") else STAGES) for fate in FATES}
    deaths = [runs["fetch:letter"].crash("worker-2")]
    runs["fetch:letter"].succeed()
    for _ in range(2):
        runs["webhook:1"].fail(FLAKY)
    runs["webhook:1"].succeed()
    for _ in range(CALLS.max_attempts):
        runs["webhook:2"].fail(FLAKY)
    runs["ocr:minutes"].fail(UNREADABLE)
    deaths += [runs["ocr:poison"].crash(f"worker-{n}", fatal=True) for n in (3, 4, 5)]
    runs["summary:1"].succeed()
    records = [each.job for each in runs.values()]
    return Evidence(
        fates={fate.key: fate for fate in FATES},
        accepted=[
            *(Accepted(job.key or "", job.id, duplicate=False) for job in records),
            Accepted("summary:1", "id-of-summary:1", duplicate=True),
        ],
        records=records,
        attempts={each.job.id: each.attempts for each in runs.values()},
        finals={job.id: job for job in records},
        ledger=[entry for each in runs.values() for entry in each.ledger],
        deaths=deaths,
        findings=[],
        return_limit=LIMIT,
    )


def job_of(seen: Evidence, key: str) -> JobRecord:
    return next(job for job in seen.records if job.key == key)


def with_job(seen: Evidence, key: str, /, **fields: Any) -> Evidence:
    return replace(seen, records=[job._replace(**fields) if job.key == key else job for job in seen.records])


def with_attempt(seen: Evidence, key: str, number: int, **fields: Any) -> Evidence:
    history = list(seen.attempts[f"id-of-{key}"])
    history[number] = history[number]._replace(**fields)
    return replace(seen, attempts={**seen.attempts, f"id-of-{key}": history})


def with_entry(seen: Evidence, key: str, word: Word, attempt: int = 1) -> Evidence:
    return replace(seen, ledger=[*seen.ledger, Entry(START, word, f"id-of-{key}", attempt, "worker-1", "a receipt")])


def without_job(seen: Evidence, key: str) -> Evidence:
    return replace(seen, records=[job for job in seen.records if job.key != key])


def with_twin(seen: Evidence, key: str) -> Evidence:
    return replace(seen, records=[*seen.records, job_of(seen, key)._replace(id="another")])


Harm = Callable[[Evidence], Evidence]

HARMS: dict[str, tuple[str, Harm]] = {
    "an accepted job is gone": ("S1", lambda seen: without_job(seen, "webhook:1")),
    "a stage was never enqueued": (
        "S1",
        lambda seen: replace(
            without_job(seen, "fetch:letter"), accepted=[one for one in seen.accepted if one.key != "fetch:letter"]
        ),
    ),
    "a job is left running": ("S1", lambda seen: with_job(seen, "summary:1", state=State.RUNNING)),
    "a job that nobody asked for": ("S2", lambda seen: with_job(seen, "summary:1", key="summary:13")),
    "a run of a job that is not stored": ("S2", lambda seen: with_entry(seen, "nothing", "begin")),
    "a key has two jobs": ("S6", lambda seen: with_twin(seen, "summary:1")),
    "a key was let through twice": (
        "S6",
        lambda seen: replace(seen, accepted=[one._replace(duplicate=False) for one in seen.accepted]),
    ),
    "a duplicate got another job's id": (
        "S6",
        lambda seen: replace(seen, accepted=[*seen.accepted, Accepted("summary:1", "another", duplicate=True)]),
    ),
    "no key was put to the test": ("S6", lambda seen: replace(seen, accepted=seen.accepted[:-1])),
    "two workers held a job at once": ("S8", lambda seen: with_attempt(seen, "webhook:1", 1, claimed_at=START)),
    "a lease is missing": ("S8", lambda seen: with_attempt(seen, "webhook:1", 1, token=7)),
    "a result that the last run did not give": ("S9", lambda seen: with_job(seen, "summary:1", result='"stolen"')),
    "a result of an earlier attempt": ("S9", lambda seen: with_job(seen, "fetch:letter", attempt=1)),
    "a job completed twice": ("S9", lambda seen: with_attempt(seen, "webhook:1", 1, outcome="complete")),
    "a completed job that is dead": ("S9", lambda seen: with_job(seen, "summary:1", state=State.DEAD)),
    "a finished job changed": ("S15", lambda seen: with_job(seen, "summary:1", updated_at=START)),
    "a finished job vanished": ("S15", lambda seen: without_job(seen, "summary:1")),
    "nobody was watching": ("S15", lambda seen: replace(seen, finals={})),
    "a summary came before its time": ("S17", lambda seen: with_attempt(seen, "summary:1", 0, claimed_at=START + 1)),
    "a retry did not wait": (
        "S17",
        lambda seen: with_attempt(seen, "webhook:1", 1, claimed_at=seen.attempts["id-of-webhook:1"][0].ended_at),
    ),
    "an attempt too many": ("S18", lambda seen: with_job(seen, "webhook:2", attempt=6)),
    "an attempt that was not counted": ("S18", lambda seen: with_attempt(seen, "webhook:2", 1, attempt=1)),
    "one attempt ran twice": ("S18", lambda seen: with_entry(seen, "webhook:1", "begin")),
    "a rejected document was tried again": ("S19", lambda seen: with_job(seen, "ocr:minutes", attempt=2)),
    "a webhook failed when it should have worked": (
        "S19",
        lambda seen: with_attempt(seen, "webhook:1", 2, outcome="fail"),
    ),
    "a webhook worked when it should have failed": (
        "S19",
        lambda seen: with_attempt(seen, "webhook:1", 0, outcome="complete"),
    ),
    "a dead letter that should live": ("S26", lambda seen: with_job(seen, "summary:1", state=State.DEAD)),
    "a dead letter is missing": ("S26", lambda seen: with_job(seen, "webhook:2", state=State.SUCCEEDED)),
    "a dead letter of the wrong cause": ("S26", lambda seen: with_job(seen, "webhook:2", cause=Cause.EXPIRED)),
    "a dead letter without a reason": ("S26", lambda seen: with_job(seen, "webhook:2", failure_code=None)),
    "a dead letter without its history": ("S26", lambda seen: with_job(seen, "webhook:2", token=9)),
    "a crashed worker's job stayed away": (
        "L2",
        lambda seen: with_attempt(seen, "fetch:letter", 0, ended_at=START + 60 * SECOND),
    ),
    "no worker was killed": (
        "L2",
        lambda seen: replace(seen, deaths=[death for death in seen.deaths if death.by != "demo"]),
    ),
    "a worker ended by itself": (
        "L2",
        lambda seen: replace(seen, deaths=[*seen.deaths, Death("worker-9", START, "itself")]),
    ),
    "no job came back": ("L2", lambda seen: replace(seen, deaths=[Death("worker-9", START, "demo")])),
    "a bystander was taken for poison": (
        "L5",
        lambda seen: with_job(seen, "webhook:2", state=State.DEAD, cause=Cause.CRASHED),
    ),
    "poison killed one worker too many": ("L5", lambda seen: with_entry(seen, "ocr:poison", "fatal")),
    "poison was not stopped": ("L5", lambda seen: with_job(seen, "ocr:poison", cause=Cause.EXHAUSTED)),
    "poison was never there": ("L5", lambda seen: without_job(seen, "ocr:poison")),
    "the store's check found something": (
        "S36",
        lambda seen: replace(seen, findings=[Finding("S36", None, "A counter is wrong.")]),
    ),
}


def verdicts_of(seen: Evidence) -> Iterator[tuple[str, bool]]:
    return ((verdict.promise, verdict.holds) for verdict in prove(seen))


def test_a_run_in_which_all_went_well_holds_every_promise() -> None:
    assert [verdict for verdict in prove(good()) if not verdict.holds] == []


@pytest.mark.parametrize("what", HARMS)
def test_a_broken_promise_is_seen(what: str) -> None:
    promise, harm = HARMS[what]
    assert not dict(verdicts_of(harm(good())))[promise]


def test_every_line_of_the_table_can_fail() -> None:
    assert {promise for promise, _ in HARMS.values()} == dict(verdicts_of(good())).keys()
    assert len(CHECKS) == len(list(verdicts_of(good())))


def test_one_broken_promise_makes_the_whole_demo_fail() -> None:
    console = Console(record=True, width=80, file=StringIO())
    assert report(console, prove(good()), "6 jobs", "SEED=7") == 0
    assert report(console, prove(without_job(good(), "webhook:1")), "6 jobs", "SEED=7") == 1
    text = console.export_text()
    assert "✗  S1   no job lost           webhook:1 was accepted and is gone" in text
    assert "A promise is broken. The same run again: SEED=7 make demo" in text


def test_a_long_list_of_wrongs_is_cut_short() -> None:
    lost = next(verdict for verdict in prove(replace(good(), records=[])) if verdict.promise == "S1")
    assert lost.text.endswith("; and 11 more")
