"""Events: what is told of a move, decided from the job and the move alone and written in the same commit.

At least once, in order per job, each with an id that stays the same, so that whoever listens can tell repeats. Nothing
personal: ids, kinds, states, codes, times and credits. Names that begin with `holdfast.` are for Holdfast itself.
"""

from typing import Any

from pydantic_core import to_json

from holdfast.domain import trace
from holdfast.domain.job import NOTE, PLAIN, JobRecord, State
from holdfast.domain.lifecycle import STARTED
from holdfast.domain.move import Event, Held, Move, Verb

STEP = "workflow_step_completed"
COMPLETED = "workflow_run_completed"
DEAD = "job_dead"
CANCELLED = "job_cancelled"
RETRYING = "job_retrying"
REDRIVEN = "job_redriven"
CHILD_ENDED = "holdfast.child_ended"
PARENT_CANCELLED = "holdfast.parent_cancelled"

_TERMINAL = {State.SUCCEEDED: COMPLETED, State.DEAD: COMPLETED, State.CANCELLED: COMPLETED}


def told(job: JobRecord, move: Move, *, public: bool) -> Move:
    """Give the move with the events that are to be told of it: `public` ones, and what a job's family must hear."""
    if not public and job.parent is None and job.flow is None:
        return move
    events = [*(_public(job, move) if public else ()), *_family(job, move)]
    return move._replace(events=tuple(events)) if events else move


def _public(job: JobRecord, move: Move) -> list[Event]:
    flow = job.flow or PLAIN
    events: list[Event] = []
    if job.state is State.RUNNING and flow.told != job.generation and _tells_of_start(move):
        events.append(_event(job, move, STARTED, state=State.RUNNING.value))
    if move.step is not None and not move.step.startswith(NOTE):
        events.append(_event(job, move, STEP, step=move.step))
    if move.state in _TERMINAL:
        success = move.state is State.SUCCEEDED
        events.append(_event(job, move, COMPLETED, success=success))
        if not success:
            events.append(_event(job, move, DEAD if move.state is State.DEAD else CANCELLED))
    elif move.verb in (Verb.FAIL, Verb.REAP) and move.state is State.RETRYING:
        events.append(_event(job, move, RETRYING))
    elif move.verb is Verb.REDRIVE:
        events.append(_event(job, move, REDRIVEN))
    return events


def _tells_of_start(move: Move) -> bool:
    """Tell whether a move says that its job ran. Whoever only asks something of a running job leaves that to the
    holder, who would not know that it has been told.
    """
    return move.verb is not Verb.RELEASE and (isinstance(move.guard, Held) or move.state is not State.RUNNING)


def _family(job: JobRecord, move: Move) -> list[Event]:
    events: list[Event] = []
    if move.state in _TERMINAL and job.parent is not None:
        events.append(_event(job, move, CHILD_ENDED))
    if (move.state is State.CANCELLED or move.ending == State.CANCELLED.value) and job.flow and job.flow.children:
        events.append(_event(job, move, PARENT_CANCELLED))
    return events


def _event(job: JobRecord, move: Move, name: str, **more: Any) -> Event:
    flow = job.flow or PLAIN
    failure = move.failure or (job.failure if move.state is State.DEAD else None)
    body = {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "tenant": job.tenant,
        "trigger": job.trigger,
        "parent": job.parent,
        "trace_id": trace.told(job.trace_id),
        "state": move.state.value,
        "generation": move.generation,
        "attempt": job.attempt,
        "cause": None if move.cause is None else move.cause.value,
        "code": None if failure is None else failure.code,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "credits_spent": flow.spent + move.spend,
        **more,
    }
    made = f"{move.guard.token}.{move.verb}" if isinstance(move.guard, Held) else f"v{move.guard.version}.{move.verb}"
    step = "" if move.step is None else f".{move.step}"
    told = {key: value for key, value in body.items() if value is not None}
    return Event(f"{job.id}.{move.generation}.{made}{step}.{name}", name, to_json(told).decode())
