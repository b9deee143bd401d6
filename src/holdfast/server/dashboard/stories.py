"""What happened to a job, put in order: the timeline of its states, and the waterfall of its steps.

Both are told from what is stored anyway: the record, its attempts and its steps. A step is recorded when it ends; it
is taken to have begun when the step before it ended, or when its attempt was claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.job import NOTE, TERMINAL, AttemptRecord, JobRecord, State, StepRecord
from holdfast.domain.moments import Micros

_GIVEN_BACK = {
    "release": "given back by a stopping worker",
    "snooze": "put off by its handler",
    "fail": "waited to be tried again",
    "reap": "waited after its worker was lost",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a job stood in one state; `end` is None if it still does."""

    state: str
    text: str
    begin: Micros
    end: Micros | None


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of the waterfall: a step, or a wait between steps."""

    name: str
    kind: str
    """`step`, `undo`, `wait`, or `now` for what is under way."""
    begin: Micros
    end: Micros | None


def stretches(job: JobRecord, attempts: Sequence[AttemptRecord]) -> list[Stretch]:
    """Tell the states of a job from its creation to now or to its end."""
    told: list[Stretch] = []
    since, text = job.created_at, "waiting for its first attempt"
    waits = State.QUEUED.value
    for attempt in attempts:
        if attempt.claimed_at is None:
            continue
        told.append(Stretch(waits, text, since, attempt.claimed_at))
        told.append(Stretch(State.RUNNING.value, f"attempt {attempt.attempt}", attempt.claimed_at, attempt.ended_at))
        since = attempt.ended_at or attempt.claimed_at
        waits, text = State.RETRYING.value, _GIVEN_BACK.get(attempt.outcome, "waited")
    if job.state not in TERMINAL and job.state is not State.RUNNING:
        told.append(Stretch(job.state.value, "waiting", since, None))
    elif job.state in TERMINAL:
        end = job.finished_at or job.updated_at
        if end > since:
            told.append(Stretch(waits, text, since, end))
        told.append(Stretch(job.state.value, job.cause or job.state.value, end, end))
    return told


def waterfall(
    job: JobRecord, attempts: Sequence[AttemptRecord], recorded: Sequence[StepRecord], waiting: str | None
) -> list[Bar]:
    """Tell the steps of a job with the waits between them; `recorded` are its steps and its notes, and `waiting` says
    what it waits for now.
    """
    if not recorded and not job.steps_total:
        return []
    bars: list[Bar] = []
    runs = [attempt for attempt in attempts if attempt.claimed_at is not None]
    left = sorted(recorded, key=lambda step: step.recorded_at)
    since, why = job.created_at, "waited for its first attempt"
    for number, run in enumerate(runs):
        assert run.claimed_at is not None
        if number:
            bars.append(Bar(why, "wait", since, run.claimed_at))
        since, why = run.claimed_at, _pause(run)
        while left and (run.ended_at is None or left[0].recorded_at <= run.ended_at or number == len(runs) - 1):
            step = left.pop(0)
            why = _reason(step) or _pause(run)
            if not step.name.startswith(NOTE):
                bars.append(Bar(step.name, _kind(step), min(since, step.recorded_at), step.recorded_at))
                since = step.recorded_at
        if run.ended_at is None:
            bars.append(Bar("running", "now", since, None))
        since = run.ended_at or since
    if waiting is not None and job.state not in TERMINAL and job.state is not State.RUNNING:
        bars.append(Bar(waiting, "wait", since, None))
    return bars


def _kind(step: StepRecord) -> str:
    return "undo" if step.name.startswith("undo:") else "step"


def _reason(step: StepRecord) -> str | None:
    """Say what a workflow waited for after it made this record, if it did."""
    if (step.result or "").startswith('{"$sleep":'):
        return f"slept for {step.name}"
    word, _, name = step.name.removeprefix(NOTE).partition(":")
    if not step.name.startswith(NOTE):
        return None
    match word:
        case "wait":
            return f"waited for the signal {name}"
        case "children":
            return "waited for its children"
        case "try":
            return f"waited to try {name.rpartition(':')[0]} again"
        case _:
            return None


def _pause(ended: AttemptRecord) -> str:
    return _GIVEN_BACK.get(ended.outcome, "waited") + (f" ({ended.code})" if ended.code else "")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bar is drawn, in thousandths of the whole width."""

    left: int
    width: int


def places(begins_ends: Sequence[tuple[Micros, Micros | None]], now: Micros) -> list[Place]:
    """Lay stretches of time side by side, to scale; none is too short to be seen."""
    if not begins_ends:
        return []
    first = min(begin for begin, _ in begins_ends)
    last = max(now if end is None else end for _, end in begins_ends)
    whole = max(last - first, 1)
    laid = []
    for begin, end in begins_ends:
        left = round((begin - first) * 1000 / whole)
        width = max(4, round(((now if end is None else end) - begin) * 1000 / whole))
        laid.append(Place(min(left, 996), min(width, 1000 - min(left, 996))))
    return laid
