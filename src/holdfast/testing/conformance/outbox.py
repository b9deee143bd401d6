"""Events: written if and only if their move is, once, in order, and kept until every sink has had them."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from holdfast.domain import events, lifecycle
from holdfast.domain.job import Flow, JobRecord, State
from holdfast.domain.move import Answer, Event, Held, Move
from holdfast.port.store import EventRecord
from holdfast.testing.lab import FLAKY, HOPELESS, RETENTION, Lab


def an_event_is_written_with_its_move(lab: Lab) -> None:
    job = lab.running()
    lab.clock.advance(seconds=1)
    move = _told(job, lifecycle.checkpoint(job, "fetch ü", "1"))
    after = lab.done(move)
    assert after.flow == Flow(told=1)
    written = lab.store.events(0, 10)
    assert _plain(written) == list(move.events)
    assert [(event.job_id, event.at) for event in written] == [(job.id, lab.clock.now())] * 2
    assert [event.name for event in written] == [lifecycle.STARTED, events.STEP]
    assert written[0].position < written[1].position


def every_verb_may_tell_something(lab: Lab) -> None:
    told: list[Event] = []
    for decide in _DECISIONS:
        job = lab.running()
        move = decide(job)._replace(events=_some(decide.__name__, 2))
        lab.done(move)
        told += move.events
    for state in (State.QUEUED, State.RETRYING):
        job = lab.in_state(state)
        signal = lifecycle.signal(job, "s-1", "go", None)._replace(events=_some(f"{state} signal", 1))
        cancel = lifecycle.cancel(lab.done(signal), RETENTION)._replace(events=_some(f"{state} cancel", 1))
        lab.done(cancel)
        told += signal.events + cancel.events
    dead = lab.in_state(State.DEAD)
    move = lifecycle.redrive(dead)._replace(events=_some("redrive", 1))
    lab.done(move)
    told += move.events
    assert _plain(lab.store.events(0, 1_000)) == told


def a_run_is_told_from_start_to_end(lab: Lab) -> None:
    job = lab.running()
    job = lab.done(_told(job, lifecycle.checkpoint(job, "fetch", None)))
    job = lab.done(_told(job, lifecycle.note(job, "~n", None)))
    job = lab.done(_told(job, lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)))
    lab.clock.advance(minutes=1)
    job = lab.take(job)
    job = lab.done(_told(job, lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)))
    lab.done(_told(job, lifecycle.redrive(job)))
    job = lab.take(job)
    lab.done(_told(job, lifecycle.complete(job, "1", RETENTION)))
    assert [event.name for event in lab.store.events(0, 100)] == [
        lifecycle.STARTED, events.STEP, events.RETRYING, events.COMPLETED, events.DEAD,
        events.REDRIVEN, lifecycle.STARTED, events.COMPLETED,
    ]  # fmt: skip
    assert len({event.id for event in lab.store.events(0, 100)}) == 8


def a_refused_move_tells_nothing(lab: Lab) -> None:
    job = lab.running()
    for move in (lifecycle.complete(job, None, RETENTION), lifecycle.checkpoint(job, "a", None)):
        spoilt = _told(job, move)._replace(guard=Held(job.token, "x"))
        lab.refused(spoilt, Answer.ALREADY_CLAIMED)
    lab.refused(_told(job, lifecycle.complete(job, None, RETENTION))._replace(id=lab.ids.take(1)[0]), Answer.ABSENT)
    lab.store.grant("acme", 1, "g-1")
    poor = lab.running(tenant="acme")
    lab.refused(_told(poor, lifecycle.complete(poor, None, RETENTION, spend=2)), Answer.UNPAID)
    assert lab.store.events(0, 10) == []


def a_move_asked_again_tells_nothing_twice(lab: Lab) -> None:
    job = lab.running()
    step = _told(job, lifecycle.checkpoint(job, "a", None))
    end = _told(lifecycle.apply(job, step, 0), lifecycle.complete(job, None, RETENTION))
    assert lab.store.commit([step, step, end, end]) == [Answer.OK] * 4
    for move in (end, end):
        lab.refused(move, Answer.OK)
    assert _plain(lab.store.events(0, 10)) == [*step.events, *end.events]


def a_signal_of_a_known_id_tells_nothing(lab: Lab) -> None:
    job = lab.done(lifecycle.signal(lab.job(), "s-1", "go", None))
    lab.refused(lifecycle.signal(job, "s-1", "go", None)._replace(events=_some("again", 1)), Answer.OK)


def events_of_many_moves_are_told_in_their_order(lab: Lab) -> None:
    lab.jobs(10)
    jobs = lab.claim(10)
    moves = [_told(job, lifecycle.complete(job, None, RETENTION)) for job in jobs]
    moves[2] = moves[2]._replace(guard=Held(9, "x"))
    moves[5] = lifecycle.complete(jobs[5], None, RETENTION)
    answers, _ = lab.store.exchange(moves, lab.want(5))
    assert answers == [Answer.ALREADY_CLAIMED if n == 2 else Answer.OK for n in range(10)]
    told = {job.id: [event for event in lab.store.events(0, 100) if event.job_id == job.id] for job in jobs}
    for number, (job, move) in enumerate(zip(jobs, moves, strict=True)):
        assert _plain(told[job.id]) == ([] if number == 2 else list(move.events))
    assert lab.read(jobs[5]).flow is None


def steps_of_many_jobs_are_told_too(lab: Lab) -> None:
    lab.jobs(4)
    jobs = lab.claim(4)
    moves = [
        _told(job, move)
        for job in jobs
        for move in (lifecycle.checkpoint(job, "a", None), lifecycle.checkpoint(job, "b", None))
    ]
    assert lab.store.commit(moves) == [Answer.OK] * 8
    written = lab.store.events(0, 100)
    for job in jobs:
        own = [event for move in moves if move.id == job.id for event in move.events]
        assert _plain([event for event in written if event.job_id == job.id]) == own


def events_are_listed_from_behind_a_position(lab: Lab) -> None:
    _tell(lab, 7)
    written = lab.store.events(0, 100)
    assert len(written) == 7
    assert lab.other.events(0, 100) == written
    assert lab.store.events(0, 3) == written[:3]
    assert lab.store.events(written[2].position, 3) == written[3:6]
    assert lab.store.events(written[-1].position, 3) == []
    assert [event.position for event in written] == sorted({event.position for event in written})


def a_sink_never_goes_back(lab: Lab) -> None:
    assert lab.store.sinks() == {}
    lab.store.reach("it's", 0)
    lab.store.reach("hook", 5)
    lab.store.reach("hook", 3)
    assert lab.store.sinks() == lab.other.sinks() == {"it's": 0, "hook": 5}
    lab.store.reach("it's", 2)
    lab.store.remove_sink("hook")
    lab.store.remove_sink("nobody")
    assert lab.store.sinks() == {"it's": 2}


def events_are_kept_until_every_sink_has_had_them(lab: Lab) -> None:
    _tell(lab, 6)
    written = lab.store.events(0, 100)
    lab.store.reach("slow", written[1].position)
    lab.store.reach("fast", written[4].position)
    assert lab.store.trim(1) == 1
    assert lab.store.trim(100) == 1
    assert lab.store.trim(100) == 0
    assert lab.store.events(0, 100) == written[2:]
    lab.store.remove_sink("slow")
    assert lab.store.trim(100) == 3
    assert lab.store.events(0, 100) == written[5:]


def a_new_sink_holds_back_what_it_has_not_had(lab: Lab) -> None:
    _tell(lab, 2)
    lab.store.reach("new", 0)
    assert lab.store.trim(100) == 0
    assert len(lab.store.events(0, 100)) == 2


def without_a_sink_nothing_is_kept(lab: Lab) -> None:
    _tell(lab, 3)
    assert lab.store.trim(2) == 2
    assert lab.store.trim(100) == 1
    assert lab.store.events(0, 100) == []


def positions_are_never_given_twice(lab: Lab) -> None:
    _tell(lab, 3)
    last = lab.store.events(0, 100)[-1].position
    lab.store.trim(100)
    _tell(lab, 1)
    [event] = lab.store.events(0, 100)
    assert event.position > last
    assert lab.store.events(last, 100) == [event]


def positions_grow_even_after_a_restart(lab: Lab) -> None:
    lab.need("durable")
    _tell(lab, 3)
    last = lab.store.events(0, 100)[-1].position
    lab.store.trim(100)
    lab.store.close()
    again = lab.reopen()
    [id_] = lab.ids.take(1)
    again.insert([[(id_, lab.new())]])
    [job] = again.claim(lab.want(id=id_))
    again.commit([_told(job, lifecycle.start(job))])
    assert [event.position > last for event in again.events(0, 100)] == [True]


def events_outlive_their_job(lab: Lab) -> None:
    job = lab.running()
    lab.done(_told(job, lifecycle.complete(job, None, RETENTION)))
    before = lab.store.events(0, 100)
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert lab.store.purge(10).jobs == 1
    assert lab.store.events(0, 100) == before != []


def _told(job: JobRecord, move: Move) -> Move:
    return events.told(job, move, public=True)


def _some(about: str, number: int) -> tuple[Event, ...]:
    return tuple(Event(f"{about} {n}", f"it's {about}", f'{{"n":"ü {n}"}}') for n in range(number))


def _tell(lab: Lab, number: int) -> None:
    """Let some jobs tell of their start, one after the other."""
    for _ in range(number):
        job = lab.running()
        lab.done(_told(job, lifecycle.start(job)))


def _plain(written: list[EventRecord]) -> list[Event]:
    return [Event(event.id, event.name, event.body) for event in written]


def _complete(job: JobRecord) -> Move:
    return lifecycle.complete(job, "1", RETENTION)


def _fail(job: JobRecord) -> Move:
    return lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)


def _reject(job: JobRecord) -> Move:
    return lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)


def _snooze(job: JobRecord) -> Move:
    return lifecycle.snooze(job, 1)


def _suspend(job: JobRecord) -> Move:
    return lifecycle.suspend(job, "~wait", None, awaits="go")


def _checkpoint(job: JobRecord) -> Move:
    return lifecycle.checkpoint(job, "a", None)


def _settle_cancel(job: JobRecord) -> Move:
    return lifecycle.settle_cancel(job, RETENTION)


_DECISIONS = (
    lifecycle.start,
    _checkpoint,
    _complete,
    _fail,
    _reject,
    lifecycle.release,
    _snooze,
    _suspend,
    _settle_cancel,
)
