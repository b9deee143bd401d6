"""Refusing what is stale: a move whose guard does not hold leaves every byte as it was."""

from collections.abc import Callable
from itertools import chain

from holdfast.domain import lifecycle, moving
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import MOVING, TERMINAL, Flow, JobRecord, State
from holdfast.domain.moments import DAY, SECOND
from holdfast.domain.move import Answer, Held, Move, Seen, Verb
from holdfast.testing.lab import FLAKY, HOPELESS, LEASE, RETENTION, Lab

_Decide = Callable[[JobRecord], Move]

_FAR = 10_000 * DAY

_HELD: dict[str, _Decide] = {
    "start": lifecycle.start,
    "checkpoint": lambda job: lifecycle.checkpoint(job, "a step", '"late"'),
    "complete": lambda job: lifecycle.complete(job, '"late"', RETENTION),
    "fail": lambda job: lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION),
    "fail for good": lambda job: lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION),
    "release": lifecycle.release,
    "snooze": lambda job: lifecycle.snooze(job, SECOND),
    "snooze for a signal": lambda job: lifecycle.suspend(job, "~wait", None, awaits="go"),
    "undo": lambda job: lifecycle.undo(job._replace(flow=Flow(ending="cancelled")), RETENTION),
    "settle cancel": lambda job: lifecycle.settle_cancel(job, RETENTION),
}
_SEEN: dict[str, _Decide] = {
    "submit": lifecycle.submit,
    "reap": lambda job: lifecycle.reap(job, _FAR, RETENTION),
    "cancel": lambda job: lifecycle.cancel(job, RETENTION),
    "redrive": lifecycle.redrive,
    "signal": lambda job: lifecycle.signal(job, "s-1", "go", None),
    "postpone": lambda job: lifecycle.postpone(job, SECOND),
    "hold": lambda job: moving.hold(job, "here", "there"),
    "leave": lambda job: moving.leave(_moving(job), "there", DAY),
    "arrive": lambda job: moving.arrive(_moving(job), moving.Note("here", "there", {"state": job.state, "flow": None})),
}


def _moving(job: JobRecord) -> JobRecord:
    return job._replace(flow=Flow(ending=MOVING))


def a_holder_s_move_is_refused_after_the_next_claim(lab: Lab) -> None:
    for decide in _HELD.values():
        old = lab.running(crash_cap=9)
        lab.lapse()
        [lost] = lab.reap()
        lab.refused(decide(old), Answer.ALREADY_CLAIMED)
        new = lab.take(lost)
        lab.refused(decide(old), Answer.ALREADY_CLAIMED)
        lab.done(lifecycle.complete(new, '"new"', RETENTION))
        lab.refused(decide(old), Answer.NO_OP_TERMINAL)


def a_holder_needs_both_the_token_and_the_lease_id(lab: Lab) -> None:
    job = lab.running()
    for name, decide in _HELD.items():
        for guard in (
            Held(job.token + 1, str(job.lease_id)),
            Held(job.token - 1, str(job.lease_id)),
            Held(job.token, "x"),
            Held(0, ""),
        ):
            assert lab.answer(decide(job)._replace(guard=guard)) is Answer.ALREADY_CLAIMED, name
            assert lab.read(job) == job, name


def a_reaped_lease_is_refused_even_before_the_next_claim(lab: Lab) -> None:
    for name, decide in _HELD.items():
        old = lab.running(crash_cap=1)
        lab.done(lifecycle.start(old))
        lab.lapse()
        [dead] = lab.reap()
        assert dead.state is State.DEAD, name
        lab.refused(decide(old), Answer.NO_OP_TERMINAL)


def an_onlooker_s_move_is_refused_once_the_job_has_changed(lab: Lab) -> None:
    for state in State:
        for decide in _SEEN.values():
            job = lab.in_state(state)
            try:
                move = decide(job)
            except IllegalMove:
                continue
            final = lab.done(move).state in TERMINAL
            lab.refused(move, Answer.NO_OP_TERMINAL if final else Answer.ALREADY_CLAIMED)


def a_heartbeat_makes_a_reaper_s_knowledge_stale(lab: Lab) -> None:
    job = lab.running()
    lab.lapse()
    [late] = lab.store.expired(10)
    assert lab.beat(job) is Answer.OK
    lab.refused(lifecycle.reap(late, lab.clock.now(), RETENTION), Answer.ALREADY_CLAIMED)


def every_move_of_an_absent_job_answers_absent(lab: Lab) -> None:
    [nowhere] = lab.ids.take(1)
    for state in State:
        job = lab.in_state(state)
        for decide in chain(_HELD.values(), _SEEN.values()):
            try:
                move = decide(job)._replace(id=nowhere)
            except IllegalMove:
                continue
            assert lab.answer(move) is Answer.ABSENT, move.verb
    assert lab.store.read([nowhere]) == [None]
    assert lab.store.attempts(nowhere) == []
    assert lab.store.steps(nowhere) == []


def a_requested_cancellation_stops_a_holder_s_next_move(lab: Lab) -> None:
    for name, decide in _HELD.items():
        job = lab.running()
        lab.done(lifecycle.cancel(job, RETENTION))
        move = decide(job)
        if move.yields:
            lab.refused(move, Answer.CANCEL_REQUESTED)
        else:
            assert lab.done(move).cancel_requested, name


def a_finished_job_never_changes_whatever_is_tried(lab: Lab) -> None:
    for state in TERMINAL:
        for verb in Verb:
            past, final = _finished(lab, state)
            before = lab.held(final.id)
            for old in past:
                _try(lab, verb, old)
            assert lab.held(final.id) == before, f"{verb} changed a job that is {state}"


def a_move_from_before_a_redrive_is_refused_in_the_new_generation(lab: Lab) -> None:
    for decide in (*_HELD.values(), _SEEN["reap"], _SEEN["cancel"]):
        past, dead = _finished(lab, State.DEAD)
        lab.done(lifecycle.redrive(dead))
        for old in past:
            try:
                move = decide(old)
            except IllegalMove:
                continue
            lab.refused(move, Answer.ALREADY_CLAIMED)
        lab.refused(lifecycle.redrive(dead), Answer.ALREADY_CLAIMED)


def _finished(lab: Lab, state: State) -> tuple[list[JobRecord], JobRecord]:
    """Bring a job through every state on its way to a terminal one; give every record it had before, and the last."""
    past = [lab.job(state=State.CREATED, crash_cap=9)]
    past.append(lab.done(lifecycle.submit(past[-1])))
    past.append(lab.take(past[-1]))
    past.append(lab.done(lifecycle.checkpoint(past[-1], "fetch", "1")))
    past.append(lab.done(lifecycle.fail(past[-1], FLAKY, draw=0, retention=RETENTION)))
    lab.clock.advance(minutes=1)
    past.append(lab.take(past[-1]))
    lab.clock.advance(microseconds=LEASE)
    past.extend(lab.reap())
    past.append(lab.take(past[-1]))
    match state:
        case State.SUCCEEDED:
            move = lifecycle.complete(past[-1], '"first"', RETENTION)
        case State.DEAD:
            move = lifecycle.fail(past[-1], HOPELESS, draw=0, retention=RETENTION)
        case _:
            move = lifecycle.settle_cancel(past[-1], RETENTION)
    return past, lab.done(move)


def _try(lab: Lab, verb: Verb, old: JobRecord) -> None:
    """Do with an outdated record whatever the verb allows."""
    match verb:
        case Verb.CREATE:
            lab.store.insert([[(old.id, lab.new(payload='"other"'))]])
        case Verb.CLAIM:
            assert lab.claim(5, id=old.id) == []
            assert lab.claim(5) == []
        case Verb.HEARTBEAT:
            assert lab.beat(old, begun=True) is Answer.NO_OP_TERMINAL
            assert lab.store.abandon("ada") == 0
        case Verb.PURGE:
            assert lab.store.purge(5).jobs == 0
        case _:
            decisions = [decide for name, decide in (_HELD | _SEEN).items() if name.startswith(verb) or verb in name]
            assert decisions, verb
            for decide in decisions:
                try:
                    move = decide(old)
                except IllegalMove:
                    continue
                lab.refused(move, _word(lab, old, move))


def _word(lab: Lab, old: JobRecord, move: Move) -> Answer:
    """Expect `ok` only where the very holder that settled the job asks for the same end again."""
    final = lab.read(old)
    own = not isinstance(move.guard, Seen) and move.guard == (final.token, final.lease_id)
    return Answer.OK if own and move.state is final.state else Answer.NO_OP_TERMINAL
