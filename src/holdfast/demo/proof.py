"""The proof: what was asked for, what the store keeps and what handlers really did, held against the promises. Pure.

Each function checks one promise and gives a `Verdict` in its own words; `prove` asks them all.
"""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from holdfast.demo.evidence import Evidence
from holdfast.demo.plan import Fate
from holdfast.demo.verdict import Verdict, books_balance, finished_is_final, one_worker_at_a_time
from holdfast.domain import retry
from holdfast.domain.job import TERMINAL, AttemptRecord, Cause, JobRecord, State
from holdfast.domain.moments import SECOND

_RETURNED = frozenset({"release", "snooze", "reap"})


def prove(evidence: Evidence) -> list[Verdict]:
    """Check every promise, in the table's order."""
    return [check(evidence) for check in CHECKS]


def none_lost(seen: Evidence) -> Verdict:
    stored = {job.id: job for job in seen.records}
    keys = {job.key for job in seen.records}
    wrong = [f"{one.key} was accepted and is gone" for one in seen.accepted if one.id not in stored]
    wrong += [f"{key} was never stored" for key in seen.fates if key not in keys]
    wrong += [f"{job.key} is still {job.state}" for job in seen.records if job.state not in TERMINAL]
    return Verdict("S1", "no job lost", f"{len(seen.fates)} jobs asked for, {len(stored)} finished", tuple(wrong))


def nothing_from_nowhere(seen: Evidence) -> Verdict:
    stored = {job.id for job in seen.records}
    wrong = [f"nobody asked for {job.key or job.id}" for job in seen.records if job.key not in seen.fates]
    wrong += [
        f"a handler ran for {entry.job}, which is not stored"
        for entry in seen.words("begin")
        if entry.job not in stored
    ]
    runs = sum(1 for _ in seen.words("begin"))
    return Verdict(
        "S2", "nothing from nowhere", f"{runs} runs of {len(stored)} jobs, all of them asked for", tuple(wrong)
    )


def one_job_per_key(seen: Evidence) -> Verdict:
    owners: dict[str | None, set[str]] = {}
    for job in seen.records:
        owners.setdefault(job.key, set()).add(job.id)
    wrong = [f"{key} has {len(ids)} jobs" for key, ids in owners.items() if len(ids) > 1]
    wrong += [
        f"{one.key} was answered with another job"
        for one in seen.accepted
        if owners.get(one.key) not in (None, {one.id})
    ]
    fresh = Counter(one.key for one in seen.accepted if not one.duplicate)
    wrong += [f"{key} was let through {times} times" for key, times in fresh.items() if times > 1]
    asked = Counter(one.key for one in seen.accepted)
    twice = [key for key, times in asked.items() if times > 1]
    wrong += [] if twice else ["no key was offered twice"]
    return Verdict("S6", "one job per key", f"{len(twice)} keys offered twice, each let through once", tuple(wrong))


def settled_once(seen: Evidence) -> Verdict:
    wrong: list[str] = []
    receipts: dict[str, dict[str, int]] = {}
    for entry in seen.words("done"):
        receipts.setdefault(entry.job, {})[entry.note] = entry.attempt
    results = 0
    for job in seen.records:
        if job.state is State.SUCCEEDED:
            results += 1
            receipt = str(json.loads(job.result or "null"))
            if receipts.get(job.id, {}).get(receipt) != job.attempt:
                wrong.append(f"{job.key} has a result that its last run did not give")
        outcomes = Counter(attempt.outcome for attempt in seen.attempts.get(job.id, ()))
        if outcomes["complete"] != (job.state is State.SUCCEEDED):
            wrong.append(f"{job.key} is {job.state} and was completed {outcomes['complete']} times")
    again = sum(map(len, receipts.values())) - results
    more = f", {again} lost run{'s' * (again > 1)} redone" if again else ""
    return Verdict("S9", "none settled twice", f"{results} results recorded once{more}", tuple(wrong))


def never_early(seen: Evidence) -> Verdict:
    wrong: list[str] = []
    waits = planned = 0
    for job in seen.records:
        history = seen.attempts.get(job.id, ())
        fate = seen.fates.get(job.key or "")
        delay = fate.delay if fate else 0
        planned += delay > 0
        if history and (history[0].claimed_at or 0) < job.created_at + delay:
            wrong.append(f"{job.key} ran before its time")
        policy = retry.parse(job.retry, job.max_attempts)
        for before, after in pairwise(history):
            if before.outcome == "fail":
                waits += 1
                if (after.claimed_at or 0) < (before.ended_at or 0) + policy.bounds(before.attempt)[0]:
                    wrong.append(f"{job.key} was retried before its backoff was over")
    return Verdict("S17", "never early", f"{waits} retries and {planned} summaries waited their time", tuple(wrong))


def bounded_attempts(seen: Evidence) -> Verdict:
    runs = Counter((entry.job, entry.attempt) for entry in seen.words("begin"))
    keys = {job.id: job.key for job in seen.records}
    wrong = [
        f"attempt {attempt} of {keys.get(id_)} ran {times} times" for (id_, attempt), times in runs.items() if times > 1
    ]
    for job in seen.records:
        history = seen.attempts.get(job.id, ())
        if job.attempt > job.max_attempts:
            wrong.append(f"{job.key} had {job.attempt} of {job.max_attempts} attempts")
        if history and (history[0].attempt, history[-1].attempt) != (1, job.attempt):
            wrong.append(f"the attempts of {job.key} are miscounted")
        wrong += [f"an attempt of {job.key} was not counted" for pair in pairwise(history) if not _counted(*pair)]
    charged = sum(job.attempt for job in seen.records)
    return Verdict("S18", "attempts bounded", f"{charged} attempts, none past its job's limit", tuple(wrong))


def _counted(before: AttemptRecord, after: AttemptRecord) -> bool:
    return after.attempt == before.attempt + 1 or (after.attempt == before.attempt and before.outcome in _RETURNED)


def errors_told_apart(seen: Evidence) -> Verdict:
    wrong: list[str] = []
    recovered = rejected = 0
    for job in seen.records:
        fate = seen.fates.get(job.key or "")
        if fate is None:
            continue
        outcomes = {attempt.attempt: attempt.outcome for attempt in seen.attempts.get(job.id, ())}
        if any(outcome not in _allowed(fate, job, number) for number, outcome in outcomes.items()):
            wrong.append(f"{job.key} went {', '.join(outcomes.values())}")
        recovered += job.state is State.SUCCEEDED and "fail" in outcomes.values()
        rejected += job.cause == Cause.REJECTED
    return Verdict(
        "S19", "errors told apart", f"{recovered} flaky jobs recovered, {rejected} rejected at once", tuple(wrong)
    )


def _allowed(fate: Fate, job: JobRecord, number: int) -> set[str]:
    """Say how an attempt with this number may have ended; any may have been cut short by its worker's death."""
    if fate.cause is Cause.CRASHED:
        return {"reap"}
    if fate.cause is Cause.REJECTED:
        return {"fail", "reap"} if number == job.attempt else {"reap"}
    return {"fail" if number <= fate.misses else "complete", "reap"}


def dead_letters_exact(seen: Evidence) -> Verdict:
    expected = {fate.key: fate.cause for fate in seen.fates.values() if fate.state is State.DEAD}
    found = {job.key or job.id: job.cause for job in seen.dead()}
    wrong = [f"{key} should be dead ({cause}) and is not" for key, cause in expected.items() if found.get(key) != cause]
    wrong += [f"{key} is dead ({cause})" for key, cause in found.items() if key not in expected]
    for job in seen.dead():
        if not job.failure_code or len(seen.attempts.get(job.id, ())) != job.token:
            wrong.append(f"{job.key} is dead without its whole history")
    causes = Counter(found.values())
    counted = ", ".join(f"{causes[cause]} {cause}" for cause in Cause if causes[cause])
    return Verdict("S26", "dead letters exact", f"{counted}, as planned", tuple(wrong))


def crashed_work_resumes(seen: Evidence) -> Verdict:
    died = {death.worker: death.at for death in seen.deaths}
    wrong = [] if any(death.by == "demo" for death in seen.deaths) else ["no worker was killed by the demo"]
    wrong += [f"{death.worker} ended by itself" for death in seen.deaths if death.by == "itself"]
    jobs, longest = 0, 0
    for job in seen.records:
        for attempt in seen.attempts.get(job.id, ()):
            if attempt.owner not in died or attempt.outcome != "reap":
                continue
            jobs += 1
            back = attempt.ended_at or 0
            longest = max(longest, back - died[attempt.owner])
            # Counted from the last death before it came back: whoever died then may have been the one to bring it.
            away = back - max((at for at in died.values() if at <= back), default=back)
            if away > seen.return_limit:
                wrong.append(f"{job.key} stayed with a dead worker for {away / SECOND:.1f} s")
    wrong += [] if jobs else ["no job was taken back"]
    shown = f"{jobs} jobs of {len(died)} killed workers back within {longest / SECOND:.1f} s"
    return Verdict("L2", "crashed work resumes", shown, tuple(wrong))


def poison_contained(seen: Evidence) -> Verdict:
    meant = {fate.key for fate in seen.fates.values() if fate.cause is Cause.CRASHED}
    kills = Counter(entry.job for entry in seen.words("fatal"))
    wrong = [f"{job.key} died of crashes" for job in seen.dead() if job.cause == Cause.CRASHED and job.key not in meant]
    poisons = [job for job in seen.records if job.key in meant]
    wrong += [f"{job.key} killed {kills[job.id]} workers" for job in poisons if not 1 <= kills[job.id] <= job.crash_cap]
    wrong += [f"{job.key} was not stopped" for job in poisons if job.cause != Cause.CRASHED]
    wrong += [] if poisons else ["the poison document was not there"]
    return Verdict("L5", "poison contained", f"dead after killing {sum(kills.values())} workers, alone", tuple(wrong))


CHECKS: tuple[Callable[[Evidence], Verdict], ...] = (
    none_lost,
    nothing_from_nowhere,
    one_job_per_key,
    one_worker_at_a_time,
    settled_once,
    finished_is_final,
    never_early,
    bounded_attempts,
    errors_told_apart,
    dead_letters_exact,
    crashed_work_resumes,
    poison_contained,
    books_balance,
)
