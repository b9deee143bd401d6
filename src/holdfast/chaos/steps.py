"""The part of the checker that concerns steps: S20 to S23. Pure.

A step's record holds the receipt of the body that made it, and the ledger says under which lease that body ran: so the
lease that recorded a step is known, and with it which claims came after the record.
"""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.chaos.history import History
from holdfast.chaos.ledger import Entry
from holdfast.chaos.plan import NAPPING, Task
from holdfast.demo.verdict import Verdict, name_of
from holdfast.domain import codec
from holdfast.domain.job import NOTE, JobRecord, State


class Made(NamedTuple):
    """A recorded step. `token` is the lease of the body that returned the result, and `place` where the ledger has
    its line; None if no body did.
    """

    result: str
    token: int | None
    place: int | None


class Run(NamedTuple):
    """One job that is made of steps."""

    job: JobRecord
    task: Task
    names: list[str]
    """The recorded steps, in the order of the record."""
    made: dict[str, Made]
    begun: list[tuple[int, Entry]]
    """The bodies of its steps that began, with their places in the ledger."""


def runs(seen: History) -> Iterator[Run]:
    """Give each job that is made of steps."""
    returned: dict[tuple[str, str, str], tuple[int, int]] = {}
    begun: dict[str, list[tuple[int, Entry]]] = {}
    for place, entry in enumerate(seen.ledger):
        if entry.word == "done" and entry.step:
            returned[entry.job, entry.step, entry.note] = (entry.token, place)
        if entry.word == "begin" and entry.step:
            begun.setdefault(entry.job, []).append((place, entry))
    for job, task in seen.asked():
        if not task.steps:
            continue
        records = [each for each in seen.steps.get(job.id, ()) if not each.name.startswith(NOTE)]
        made = {}
        for record in records:
            if record.name in task.steps:
                result = str(codec.decode(record.result or "null"))
                made[record.name] = Made(result, *returned.get((job.id, record.name, result), (None, None)))
        yield Run(job, task, [record.name for record in records], made, begun.get(job.id, []))


def cursor_complete(seen: History) -> Verdict:
    wrong: list[str] = []
    jobs = 0
    for run in runs(seen):
        if run.job.state is not State.SUCCEEDED:
            continue
        jobs += 1
        steps = len(run.task.steps)
        cursor = steps + (run.task.kind in NAPPING)
        if run.job.step_cursor != cursor or run.job.steps_total not in (0, steps):
            wrong.append(f"{name_of(run.job)} succeeded at step {run.job.step_cursor} of {cursor}")
    return Verdict("S20", "cursor complete", f"{jobs} workflows, each at the end of its steps", tuple(wrong))


def none_run_again(seen: History) -> Verdict:
    wrong: list[str] = []
    recorded = 0
    for run in runs(seen):
        recorded += len(run.made)
        for _, entry in run.begun:
            made = run.made.get(entry.step)
            if made is not None and made.token is not None and entry.token > made.token:
                wrong.append(f"{entry.step} of {name_of(run.job)} ran again under lease {entry.token}")
    return Verdict("S21", "recorded not re-run", f"{recorded} steps on record, none begun after", tuple(wrong))


def written_once(seen: History) -> Verdict:
    wrong: list[str] = []
    results = 0
    for run in runs(seen):
        results += len(run.made)
        if len(set(run.names)) != len(run.names):
            wrong.append(f"{name_of(run.job)} has a step on record twice")
        if run.job.state is State.SUCCEEDED:
            wrong += [
                f"{step} of {name_of(run.job)} is not on record" for step in run.task.steps if step not in run.made
            ]
        wrong += [
            f"no body returned what {name} of {name_of(run.job)} holds"
            for name, made in run.made.items()
            if made.token is None
        ]
        before = dict(zip(run.task.steps[1:], run.task.steps, strict=False))
        for _, entry in run.begun:
            made = run.made.get(before.get(entry.step, ""))
            if made is not None and entry.note != made.result:
                wrong.append(f"{entry.step} of {name_of(run.job)} was given another result than the recorded one")
    return Verdict("S22", "step results once", f"{results} results, each what its body returned", tuple(wrong))


def in_order(seen: History) -> Verdict:
    wrong: list[str] = []
    bodies = 0
    for run in runs(seen):
        order = [name for name in run.names if name in run.task.steps]
        if order != list(run.task.steps[: len(order)]):
            wrong.append(f"{name_of(run.job)} recorded {', '.join(order)}")
        before = dict(zip(run.task.steps[1:], run.task.steps, strict=False))
        for place, entry in run.begun:
            bodies += 1
            if entry.step not in before:
                continue
            made = run.made.get(before[entry.step])
            if (
                made is None
                or made.token is None
                or made.place is None
                or entry.token < made.token
                or place < made.place
            ):
                wrong.append(f"{entry.step} of {name_of(run.job)} began before {before[entry.step]} was recorded")
    return Verdict("S23", "steps in order", f"{bodies} bodies, each after the record before it", tuple(wrong))
