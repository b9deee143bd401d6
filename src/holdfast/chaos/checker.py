"""The checker: holds the history of a chaos run against the promises. Pure.

Each function checks one promise and gives a `Verdict` in its own words; `prove` asks them all. What concerns steps is
in `steps`, and what the demo checks in the same way in `demo.verdict`. Instants are compared only with instants of the
same clock: those of the store among themselves, and in the ledger places instead of times.
"""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from holdfast.chaos import steps
from holdfast.chaos.history import History
from holdfast.chaos.plan import NAP, NAPPING, Task
from holdfast.demo.verdict import Verdict, books_balance, finished_is_final, name_of, one_worker_at_a_time
from holdfast.domain import retry
from holdfast.domain.job import TERMINAL, AttemptRecord, JobRecord, State
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Verb

_CUT_SHORT = frozenset({Verb.REAP.value, Verb.RELEASE.value})
"""How any attempt may end while workers come and go."""


def prove(history: History) -> list[Verdict]:
    """Check every promise, in the table's order."""
    return [check(history) for check in CHECKS]


def none_lost(seen: History) -> Verdict:
    wrong = [f"job {one.number} was accepted and is gone" for one in seen.offers if one.id and one.id not in seen.job]
    answered = {offer.number for offer in seen.offers}
    wrong += [f"job {task.number} was never answered" for task in seen.tasks if task.number not in answered]
    wrong += [f"{name_of(job)} is still {job.state}" for job in seen.records if job.state not in TERMINAL]
    wrong += [f"a look at all jobs missed {name}" for name in seen.missed]
    return Verdict("S1", "no job lost", f"{len(seen.tasks)} jobs accepted, {len(seen.job)} finished", tuple(wrong))


def nothing_from_nowhere(seen: History) -> Verdict:
    wrong = [f"nobody asked for {name_of(job)}" for job in seen.records if job.id not in seen.task]
    wrong += [
        f"a body ran for {one.job}, which is not stored" for one in seen.words("begin") if one.job not in seen.job
    ]
    for job, task in seen.asked():
        if (job.kind, job.key) != (task.kind, task.key) or json.loads(job.payload) != task.payload:
            wrong.append(f"{name_of(job)} is not what was asked for as job {task.number}")
    bodies = sum(1 for _ in seen.words("begin"))
    return Verdict("S2", "nothing from nowhere", f"{bodies} bodies, each of a job that was asked for", tuple(wrong))


def one_job_per_key(seen: History) -> Verdict:
    owners: dict[str, set[str]] = {}
    for job in seen.records:
        if job.key is not None:
            owners.setdefault(job.key, set()).add(job.id)
    wrong = [f"{key} has {len(ids)} jobs" for key, ids in owners.items() if len(ids) > 1]
    twice = refused = 0
    for task in seen.tasks:
        if task.key is None:
            continue
        offers = [offer for offer in seen.offers if offer.number == task.number]
        same = [offer for offer in offers if not offer.other]
        twice += len(same) > 1
        refused += sum(offer.id is None for offer in offers)
        if len({offer.id for offer in same}) > 1:
            wrong.append(f"{task.key} was answered with several jobs")
        if sum(not offer.duplicate for offer in same) != 1:
            wrong.append(f"{task.key} was let through {sum(not offer.duplicate for offer in same)} times")
        if any(offer.other and offer.id is not None for offer in offers):
            wrong.append(f"{task.key} was let through with another payload")
    wrong += [] if twice and refused else ["no key was offered again"]
    shown = f"{twice} keys, one job each; {refused} conflicts refused"
    return Verdict("S6", "one job per key", shown, tuple(wrong))


def no_stale_write(seen: History) -> Verdict:
    returned = {(one.job, one.step, one.note): one.token for one in seen.words("done")}
    wrong: list[str] = []
    results = 0
    for job, task in seen.asked():
        outcomes = Counter(attempt.outcome for attempt in seen.attempts.get(job.id, ()))
        if outcomes[Verb.COMPLETE] != (job.state is State.SUCCEEDED):
            wrong.append(f"{name_of(job)} is {job.state} and was completed {outcomes[Verb.COMPLETE]} times")
        if job.state is not State.SUCCEEDED:
            continue
        results += 1
        result = json.loads(job.result or "null")
        if task.kind == "pipe":
            last = [each.result for each in seen.steps.get(job.id, ()) if each.name == task.steps[-1]]
            right = last == [job.result]
        else:
            right = returned.get((job.id, "", str(result))) == job.token
        if not right:
            wrong.append(f"the result of {name_of(job)} is not what lease {job.token} returned")
    for one in seen.words("refused"):
        held = seen.job.get(one.job)
        if one.note == Verb.COMPLETE and held and (held.state, held.token) == (State.SUCCEEDED, one.token):
            wrong.append(f"{name_of(held)} succeeded by a write that was refused")
    refused = sum(1 for _ in seen.late())
    return Verdict("S9", "no stale write", f"{results} results, each its last lease's; {refused} refused", tuple(wrong))


def never_early(seen: History) -> Verdict:
    wrong: list[str] = []
    waits = naps = 0
    for job, task in seen.asked():
        history = seen.attempts.get(job.id, ())
        policy = retry.parse(job.retry, job.max_attempts)
        asleep = next((each.recorded_at for each in seen.steps.get(job.id, ()) if each.name == "nap"), None)
        for before, after in pairwise(history):
            claimed, ended = after.claimed_at or 0, before.ended_at or 0
            if before.outcome == Verb.FAIL:
                waits += 1
                if claimed < ended + policy.bounds(max(1, before.attempt))[0]:
                    wrong.append(f"{name_of(job)} was retried before its backoff was over")
            if before.outcome == Verb.SNOOZE and task.kind in NAPPING and asleep is not None:
                naps += 1
                if claimed < asleep + NAP:
                    wrong.append(f"{name_of(job)} was woken before its sleep was over")
    return Verdict("S17", "never early", f"{waits} retries and {naps} sleeps waited their time", tuple(wrong))


def bounded_attempts(seen: History) -> Verdict:
    begun = Counter((one.job, one.step, one.token) for one in seen.words("begin"))
    wrong = [
        f"{step or 'the body'} of {id_} began {n} times under lease {k}" for (id_, step, k), n in begun.items() if n > 1
    ]
    wrong += [
        f"a body of {name_of(seen.job[id_])} began under lease {token}, which nobody was given"
        for id_, _, token in begun
        if id_ in seen.job and not 1 <= token <= seen.job[id_].token
    ]
    wrong += [
        f"{name_of(job)} had {job.attempt} of {job.max_attempts} attempts"
        for job in seen.records
        if job.attempt > job.max_attempts
    ]
    charged = sum(job.attempt for job in seen.records)
    return Verdict("S18", "attempts bounded", f"{charged} attempts, none past its job's limit", tuple(wrong))


def errors_told_apart(seen: History) -> Verdict:
    wrong: list[str] = []
    recovered = rejected = 0
    for job, task in seen.asked():
        history = seen.attempts.get(job.id, ())
        if not all(_may_end(task, attempt) for attempt in history):
            wrong.append(f"{name_of(job)} went {', '.join(attempt.outcome for attempt in history)}")
        failed = [attempt.token for attempt in history if attempt.outcome == Verb.FAIL]
        if task.kind == "reject" and failed not in ([], [job.token]):
            wrong.append(f"{name_of(job)} was claimed again after it had been rejected")
        recovered += job.state is State.SUCCEEDED and bool(failed)
        rejected += task.kind == "reject" and bool(failed)
    shown = f"{recovered} flaky jobs recovered, {rejected} rejected at once"
    return Verdict("S19", "errors told apart", shown, tuple(wrong))


def _may_end(task: Task, attempt: AttemptRecord) -> bool:
    """Tell whether an attempt may have ended as it did; any may have been cut short."""
    if attempt.outcome in _CUT_SHORT:
        return True
    if attempt.outcome == Verb.SNOOZE:
        return task.kind in NAPPING
    fails = task.cause is not None or attempt.attempt <= task.misses
    return attempt.outcome == (Verb.FAIL if fails else Verb.COMPLETE)


def dead_letters_exact(seen: History) -> Verdict:
    wrong: list[str] = []
    causes: Counter[str] = Counter()
    for job, task in seen.asked():
        if job.state is State.DEAD:
            causes[job.cause or ""] += 1
        if job.state in TERMINAL and (job.state, job.cause) != (task.state, task.cause):
            wrong.append(f"{name_of(job)} is {_told(job)} and should be {task.cause or task.state}")
        if job.state is State.DEAD and (not job.failure_code or len(seen.attempts.get(job.id, ())) != job.token):
            wrong.append(f"{name_of(job)} is dead without its whole history")
    shown = ", ".join(f"{number} {cause}" for cause, number in sorted(causes.items())) or "none"
    return Verdict("S26", "dead letters exact", f"{shown}, as planned", tuple(wrong))


def _told(job: JobRecord) -> str:
    return job.cause or job.state


def lost_work_resumes(seen: History) -> Verdict:
    wrong = list(seen.strays)
    jobs = longest = 0
    for fault in seen.faults:
        for id_, token in fault.held.items():
            ended = next((each.ended_at for each in seen.attempts.get(id_, ()) if each.token == token), None)
            if ended is None:
                wrong.append(f"{id_} never came back from {fault.worker}")
                continue
            jobs += 1
            longest = max(longest, ended - fault.at)
            # Counted from the last fault before it came back: whoever was struck then may have been about to bring it.
            away = ended - max((each.at for each in seen.faults if each.at <= ended), default=ended)
            if away > seen.return_limit:
                wrong.append(f"{id_} stayed with {fault.worker} for {away / SECOND:.1f} s")
    shown = f"{jobs} jobs of {len(seen.faults)} struck workers back within {longest / SECOND:.1f} s"
    return Verdict("L2", "lost work resumes", shown, tuple(wrong))


def legal_moves_only(seen: History) -> Verdict:
    wrong = [f"{one.promise}: {one.text} ({one.job})" for one in seen.violations]
    wrong += seen.backwards
    return Verdict("S14", "legal moves only", f"{len(seen.records)} records and their attempts add up", tuple(wrong))


CHECKS: tuple[Callable[[History], Verdict], ...] = (
    none_lost,
    nothing_from_nowhere,
    one_job_per_key,
    one_worker_at_a_time,
    no_stale_write,
    legal_moves_only,
    finished_is_final,
    never_early,
    bounded_attempts,
    errors_told_apart,
    steps.cursor_complete,
    steps.none_run_again,
    steps.written_once,
    steps.in_order,
    dead_letters_exact,
    lost_work_resumes,
    books_balance,
)
