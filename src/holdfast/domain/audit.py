"""The invariants that can be read off one stored job: what the lifecycle never leaves behind, whatever happened.

Each rule follows from `lifecycle` and is named by the promise it belongs to, so a record that breaks one was not
written by the lifecycle alone: a change by hand, a damaged file, or a bug of ours. A healthy store breaks none, at any
moment, which is tested for every order of moves. Instants are compared with a margin, because a machine's clock may be
set back a little.
"""

from collections.abc import Iterator, Sequence

from holdfast.domain.job import CLAIMABLE, TERMINAL, AttemptRecord, Cause, JobRecord, State
from holdfast.domain.lifecycle import EXPIRED, LEASE_EXPIRED, overdue, undoing
from holdfast.domain.moments import MINUTE, SECOND, Micros
from holdfast.domain.move import Verb

Violation = tuple[str, str]
"""The promise that is broken, and a sentence that says how."""

PROMISES = {
    "S8": "at most one live lease",
    "S14": "legal transitions only",
    "S15": "terminal is final",
    "S16": "cancelled never runs",
    "S17": "never early",
    "S18": "bounded attempts",
    "S19": "classification holds",
    "S20": "cursor within its steps",
    "S26": "dead letters complete and exact",
    "S28": "credits never overspent",
    "L3": "no orphan",
}
"""What is looked at here."""

PATIENCE: Micros = MINUTE
"""How long upkeep may take before what it should have done counts as forgotten. A lost leader's term is part of it."""
SKEW: Micros = 1 * SECOND
_GIVEN_BACK = frozenset({Verb.RELEASE, Verb.SNOOZE})
_BLAMED = frozenset({Cause.EXHAUSTED, Cause.REJECTED, Cause.CRASHED})
"""The causes that an attempt brings about; a job can expire without one."""


def violations(
    job: JobRecord,
    ended: Sequence[AttemptRecord] | None,
    now: Micros,
    *,
    watched_since: Micros | None = 0,
    patience: Micros = PATIENCE,
) -> list[Violation]:
    """List what is wrong with a job.

    `ended` are its ended attempts, or None if they were not read. Upkeep needs a worker: `watched_since` says since
    when one has been up, and None that there is none, in which case nothing counts as forgotten.
    """
    found = [violation for rule in _RULES for violation in rule(job)]
    if not (ended and ended[-1].outcome == Verb.UNDO):
        found += _caused(job)
    if ended is not None:
        found += _history(job, ended)
    if watched_since is not None:
        found += _forgotten(job, now, watched_since, patience)
    return found


def expects_history(job: JobRecord) -> bool:
    """Tell whether some attempt of this job must have ended other than by success."""
    return job.token > _open_or_won(job)


def _open_or_won(job: JobRecord) -> int:
    """Count the claim that left no attempt record: the one running now, or the one that succeeded."""
    return int(job.state in (State.RUNNING, State.SUCCEEDED))


def _final(job: JobRecord) -> Iterator[Violation]:
    terminal = job.state in TERMINAL
    if terminal and (job.finished_at is None or job.purge_at is None):
        yield "S15", f"It is {job.state}, but no time of finishing or of removal is set."
    if not terminal and (job.finished_at is not None or job.purge_at is not None):
        yield "S15", f"It is {job.state}, but has a time of finishing or of removal."
    if terminal and job.finished_at is not None and job.updated_at != job.finished_at:
        yield "S15", "It was written again after it had finished."
    if job.purge_at is not None and job.finished_at is not None and job.purge_at < job.finished_at:
        yield "S15", "It was to be removed before it had finished."
    if (job.state is State.DEAD) != (job.cause is not None):
        yield "S14", f"It is {job.state} with the cause {job.cause}; a dead job has one, and no other."
    if job.cause is not None and job.cause not in set(Cause):
        yield "S14", f"Its cause {job.cause!r} is none that we know."
    if job.result is not None and job.state is not State.SUCCEEDED:
        yield "S14", f"It is {job.state}, but has a result."
    if job.generation < 1 or (job.state is State.CREATED and (job.version, job.generation, job.token) != (1, 1, 0)):
        yield "S14", f"It is {job.state} at generation {job.generation}, version {job.version}; nothing leads there."
    least = job.generation + 2 * job.token - (job.state is State.RUNNING)
    if job.version < least:
        yield "S14", f"Its version is {job.version}, but what it has been through took at least {least} writes."


def _leased(job: JobRecord) -> Iterator[Violation]:
    running = job.state is State.RUNNING
    if running and (job.lease_expires_at is None or not job.lease_id or not job.lease_owner):
        yield "S8", "It is running without a whole lease."
    if not running and job.lease_expires_at is not None:
        yield "S8", f"It is {job.state}, but its lease has an end."
    if _open_or_won(job) and (job.token < 1 or not job.lease_id):
        yield "S8", f"It is {job.state}, but was never claimed."
    traces = [value is not None for value in (job.lease_owner, job.claimed_at, job.started_at)]
    if job.token < 0 or any(traces) != (job.token > 0) or any(traces) != all(traces):
        yield "S8", f"It has been claimed {job.token} times, but the marks of a claim say otherwise."


def _counted(job: JobRecord) -> Iterator[Violation]:
    if not 0 <= job.attempt <= job.max_attempts:
        yield "S18", f"It has had {job.attempt} attempts of {job.max_attempts}."
    if job.attempt > job.token:
        yield "S18", f"It has had {job.attempt} attempts with {job.token} claims."
    if job.state in CLAIMABLE and job.attempt >= job.max_attempts:
        yield "S18", f"It is {job.state}, but has no attempt left of {job.max_attempts}."
    if _open_or_won(job) and job.attempt < 1:
        yield "S18", f"It is {job.state}, but no attempt is counted."
    if job.state in (State.CREATED, State.QUEUED) and (job.attempt or job.crashes):
        yield "S18", f"It is {job.state}, but has had {job.attempt} attempts and {job.crashes} crashes."
    if job.state is State.SUCCEEDED:
        most = 0
    elif job.state is State.DEAD:
        most = min(job.crash_cap, job.attempt)
    else:
        most = min(job.crash_cap - 1, job.attempt - (job.state is State.RUNNING))
    if not 0 <= job.crashes <= most:
        yield "S18", f"It is {job.state} with {job.crashes} crashes (cap {job.crash_cap}) in {job.attempt} attempts."


def _classified(job: JobRecord) -> Iterator[Violation]:
    told = (job.failure_code is not None, job.failure_message is not None, job.failure_retryable is not None)
    if any(told) != all(told):
        yield "S26", "Its failure is told in part only."
    fresh = job.state in (State.CREATED, State.QUEUED, State.SUCCEEDED) and not undoing(job)
    if job.failure_code is not None and fresh:
        yield "S14", f"It is {job.state}, but has a failure."
    if job.failure_retryable is False and job.state not in (State.DEAD, State.CANCELLED) and not undoing(job):
        yield "S19", f"It is {job.state} after a failure that is not to be retried."
    if job.state is State.DEAD and not job.failure_code:
        yield "S26", "It is dead without a failure code."


def _caused(job: JobRecord) -> Iterator[Violation]:
    right = {
        Cause.EXHAUSTED: job.failure_retryable is not False and job.attempt >= job.max_attempts,
        Cause.REJECTED: job.failure_retryable is not True,
        Cause.CRASHED: job.failure_code == LEASE_EXPIRED and job.crashes >= job.crash_cap,
        Cause.EXPIRED: job.failure_code == EXPIRED,
    }
    if job.cause in right and not right[Cause(job.cause)]:
        seen = f"{job.failure_code}, attempt {job.attempt} of {job.max_attempts} and {job.crashes} crashes"
        yield "S26", f"Its cause is {job.cause}, but {seen} say otherwise."


def _cancelled(job: JobRecord) -> Iterator[Violation]:
    if job.state is State.CANCELLED and not job.cancel_requested:
        yield "S16", "It is cancelled, but nobody asked for that."
    if job.cancel_requested and job.state not in (State.RUNNING, State.CANCELLED, State.SUCCEEDED):
        yield "S16", f"Its cancellation was asked for, but it is {job.state}."


def _timely(job: JobRecord) -> Iterator[Violation]:
    if _open_or_won(job) and job.claimed_at is not None and job.claimed_at + SKEW < job.available_at:
        yield "S17", "It was claimed before it was due."


def _stepped(job: JobRecord) -> Iterator[Violation]:
    if job.step_cursor < 0 or 0 < job.steps_total < job.step_cursor:
        yield "S20", f"Its cursor is at step {job.step_cursor} of {job.steps_total}."
    if job.state is State.SUCCEEDED and job.steps_total > job.step_cursor:
        yield "S20", f"It succeeded after {job.step_cursor} of {job.steps_total} steps."


def _charged(job: JobRecord) -> Iterator[Violation]:
    if job.flow is None:
        return
    if min(job.flow.reserved, job.flow.spent) < 0:
        yield "S28", f"It has {job.flow.reserved} credits set aside and {job.flow.spent} spent."
    if job.state in TERMINAL and job.flow.reserved:
        yield "S28", f"It is {job.state}, but {job.flow.reserved} credits are still set aside for it."


_RULES = (_final, _leased, _counted, _classified, _cancelled, _timely, _stepped, _charged)


def _history(job: JobRecord, ended: Sequence[AttemptRecord]) -> Iterator[Violation]:
    """Follow the count of attempts through the record of them: charged by a failure, returned by a give-back, begun
    anew by a job that undoes its steps.
    """
    expected = job.token - _open_or_won(job)
    if [attempt.token for attempt in ended] != list(range(1, expected + 1)):
        yield "S26", f"It has {len(ended)} ended attempts on record; {job.token} claims leave {expected}."
        return
    now_ended = [attempt for attempt in ended if attempt.generation == job.generation]
    undone = bool(now_ended) and now_ended[-1].outcome == Verb.UNDO
    anew = {0} if undone or undoing(job) else set[int]()
    possible = {0}
    for attempt in now_ended:
        if attempt.attempt - 1 not in possible:
            told = f"Claim {attempt.token} was counted as attempt {attempt.attempt}"
            yield "S18", f"{told}, which does not follow from those before it."
        possible = _counts_after(attempt) | anew
    if job.attempt - _open_or_won(job) not in possible:
        yield "S18", f"It stands at attempt {job.attempt}, which does not follow from the {len(now_ended)} ended ones."
    if job.cause in _BLAMED and not undone and (not now_ended or now_ended[-1].code != job.failure_code):
        yield "S26", f"It is dead of {job.failure_code}, but its last attempt tells of something else."


def _counts_after(attempt: AttemptRecord) -> set[int]:
    """Give the attempts that may count once this one has ended. A reaped one was returned if it had not begun."""
    if attempt.outcome in _GIVEN_BACK:
        return {attempt.attempt - 1}
    return {attempt.attempt - 1, attempt.attempt} if attempt.outcome == Verb.REAP else {attempt.attempt}


def _forgotten(job: JobRecord, now: Micros, watched_since: Micros, patience: Micros) -> Iterator[Violation]:
    def late(since: Micros) -> bool:
        return now - max(since, watched_since) > patience

    if job.state is State.RUNNING and job.lease_expires_at is not None and late(job.lease_expires_at):
        asked = ", and its cancellation is unanswered" if job.cancel_requested else ""
        yield "L3", f"Its lease ended {_seconds(now - job.lease_expires_at)} ago and nobody has taken it back{asked}."
    if job.state is State.CREATED and late(job.updated_at):
        yield "L3", f"It was stored {_seconds(now - job.updated_at)} ago and nobody has submitted it."
    if job.state in CLAIMABLE and job.expires_at is not None and overdue(job, now) and late(job.expires_at):
        yield "L3", f"It expired {_seconds(now - job.expires_at)} ago and nobody has ended it."


def _seconds(span: Micros) -> str:
    return f"{span / SECOND:,.0f} s"
