"""What a move carries beside its state: steps, notes, progress; and steps that are undone before a job ends."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from collections.abc import Callable

from holdfast.domain import lifecycle
from holdfast.domain.job import PLAIN, Cause, Flow, JobRecord, State
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer, Held, Move
from holdfast.port.store import Beat, Query
from holdfast.testing.lab import BACKOFF, DELAY, FLAKY, HOPELESS, LEASE, RETENTION, Lab

_Decide = Callable[[JobRecord], Move]


def any_verb_may_record_a_step(lab: Lab) -> None:
    for decide in (_start, _complete, _fail_softly, _fail_hard, lifecycle.release, _snooze, _settle_cancel, _sleep):
        job = lab.running()
        lab.done(decide(job)._replace(step=f"{decide.__name__} it's", result='{"n":"ü"}'))
        [step] = lab.store.steps(job.id)
        assert step == (f"{decide.__name__} it's", '{"n":"ü"}', lab.clock.now())


def a_step_on_record_stays_as_it_is_whatever_comes_with_it(lab: Lab) -> None:
    for decide in (_start, _complete, _fail_softly, lifecycle.release, _sleep):
        job = lab.running()
        lab.done(lifecycle.checkpoint(job, "fetch", "1"))
        lab.clock.advance(seconds=1)
        lab.done(decide(job)._replace(step="fetch", result="2"))
        assert [step.result for step in lab.store.steps(job.id)] == ["1"]


def a_settlement_asked_again_records_nothing_more(lab: Lab) -> None:
    job = lab.running()
    move = lifecycle.suspend(job, "~wait", "1", delay=SECOND, advance=2)
    lab.done(move)
    lab.refused(move, Answer.OK)
    lab.refused(move._replace(step="~else"), Answer.OK)
    assert lab.read(job).step_cursor == 2


def notes_stand_beside_the_steps(lab: Lab) -> None:
    job = lab.running(steps_total=2)
    lab.done(lifecycle.note(job, "~try:fetch", "1"))
    lab.done(lifecycle.checkpoint(job, "fetch", "2"))
    lab.done(lifecycle.note(job, "~sleep", None))
    lab.refused(lifecycle.note(job, "~sleep", "3"), Answer.OK)
    assert lab.done(lifecycle.checkpoint(job, "ocr", "4")).step_cursor == 2
    names = [(step.name, step.result) for step in lab.store.steps(job.id)]
    assert names == [("~try:fetch", "1"), ("fetch", "2"), ("~sleep", None), ("ocr", "4")]


def a_step_may_move_the_cursor_by_any_number(lab: Lab) -> None:
    job = lab.running()
    cursors = [lab.done(lifecycle.checkpoint(job, f"s{n}", None, advance=n)).step_cursor for n in (0, 3, 1)]
    assert cursors == [0, 3, 4]


def steps_of_many_jobs_are_recorded_in_one_call(lab: Lab) -> None:
    lab.jobs(12)
    jobs = lab.claim(12)
    lab.store.commit([lifecycle.checkpoint(jobs[3], "s", '"before"'), lifecycle.cancel(jobs[4], RETENTION)])
    moves = [lifecycle.checkpoint(job, "s", f'"{n}"') for n, job in enumerate(jobs)]
    moves[5] = moves[5]._replace(guard=Held(jobs[5].token, "x"))
    lab.done(_complete(jobs[7]))
    answers = lab.store.commit([*moves, lifecycle.checkpoint(jobs[0], "t", None), lifecycle.note(jobs[0], "~n", None)])
    odd = {4: Answer.CANCEL_REQUESTED, 5: Answer.ALREADY_CLAIMED, 7: Answer.NO_OP_TERMINAL}
    assert answers == [odd.get(n, Answer.OK) for n in range(14)]
    results = [[step.result for step in lab.store.steps(job.id)] for job in jobs]
    assert results[0] == ['"0"', None, None]
    assert results[3] == ['"before"']
    assert [results[n] for n in odd] == [[]] * 3
    assert [lab.read(job).step_cursor for job in jobs] == [2, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 1]
    assert lab.read(jobs[3]).version == jobs[3].version + 1, "a step that was on record changes nothing"


def a_job_starts_with_the_steps_it_is_given(lab: Lab) -> None:
    steps = (("fetch", '{"a":1}'), ("ocr", None), ("it's", '"ü"'))
    [id_] = lab.ids.take(1)
    group = [(id_, lab.new(steps=steps, steps_total=4)), (lab.ids.take(1)[0], lab.new())]
    for _ in range(2):
        lab.store.insert([group])
        assert [(step.name, step.result) for step in lab.store.steps(id_)] == list(steps)
    [job] = lab.store.read([id_])
    assert job == lifecycle.create(id_, group[0][1], lab.clock.now())
    held = lab.take(job)
    assert (held.step_cursor, held.version) == (3, 2)
    lab.refused(lifecycle.checkpoint(held, "ocr", "2"), Answer.OK)
    lab.done(lifecycle.checkpoint(held, "index", "4"))
    assert [step.name for step in lab.store.steps(id_)] == ["fetch", "ocr", "it's", "index"]
    assert lab.store.steps(group[1][0]) == []


def notes_that_a_job_is_given_do_not_move_its_cursor(lab: Lab) -> None:
    for state in (State.QUEUED, State.CREATED):
        job = lab.job(state=state, steps=(("~sleep", None), ("fetch", "1"), ("~try:ocr", "2")))
        assert job.step_cursor == lab.read(job).step_cursor == 1
        assert [step.name for step in lab.store.steps(job.id)] == ["~sleep", "fetch", "~try:ocr"]


def a_job_that_was_only_created_keeps_its_steps_too(lab: Lab) -> None:
    job = lab.job(state=State.CREATED, steps=(("fetch", "1"),), delay=SECOND)
    submitted = lab.done(lifecycle.submit(job))
    lab.clock.advance(seconds=1)
    assert lab.take(submitted).step_cursor == 1


def a_job_keeps_its_parent_and_the_version_of_its_code(lab: Lab) -> None:
    parent = lab.job()
    for state in State:
        job = lab.in_state(state, parent=parent.id, code_version=7)
        assert (job.parent, job.code_version) == (parent.id, 7), state
        assert lab.store.find(Query(limit=1)) == [job]
        lab.store.commit([lifecycle.cancel(job, RETENTION)] if state in (State.CREATED, State.QUEUED) else [])
    assert lab.read(parent).parent is None


def a_plain_job_never_has_a_flow(lab: Lab) -> None:
    for state in State:
        assert lab.in_state(state).flow is None, state


def progress_comes_with_a_heartbeat(lab: Lab) -> None:
    job = lab.running()
    lab.clock.advance(seconds=5)
    assert lab.beat(job, begun=True, progress='[0.5,"half ü"]') is Answer.OK
    told = lab.read(job)
    assert told == lifecycle.beat(job, lease=LEASE, begun=True, now=lab.clock.now(), progress='[0.5,"half ü"]')
    assert lab.beat(job, begun=True) is Answer.OK
    assert lab.read(job).flow == Flow(progress='[0.5,"half ü"]')
    assert lab.beat(job, begun=True, progress="[1,null]") is Answer.OK
    done = lab.done(_complete(job))
    assert done.flow == Flow(progress="[1,null]")


def progress_is_told_for_one_s_own_lease_only(lab: Lab) -> None:
    lab.jobs(3)
    first, second, third = lab.claim(3)
    lab.done(lifecycle.cancel(second, RETENTION))
    beats = [
        Beat(first.id, first.token, str(first.lease_id), begun=True),
        Beat(second.id, second.token, str(second.lease_id), begun=True, progress="[0.2,null]"),
        Beat(third.id, third.token + 1, str(third.lease_id), begun=True, progress="[0.3,null]"),
        Beat(lab.ids.take(1)[0], 1, "x", begun=True, progress="[0.4,null]"),
    ]
    answers = lab.store.heartbeat(beats, LEASE)
    assert answers == [Answer.OK, Answer.CANCEL_REQUESTED, Answer.ALREADY_CLAIMED, Answer.ABSENT]
    assert [lab.read(job).flow for job in (first, second, third)] == [None, Flow(progress="[0.2,null]"), None]


def a_job_with_steps_to_undo_comes_to_its_end_through_undoing_them(lab: Lab) -> None:
    for decide, end in (
        (_fail_hard, "dead:rejected"),
        (_settle_cancel, "cancelled"),
    ):
        job = _undoable(lab)
        ending = lab.done(decide(job))
        assert (ending.state, ending.attempt, ending.available_at) == (State.RETRYING, 0, lab.clock.now())
        assert ending.flow == Flow(undoes=1, ending=end)
        _undone(lab, ending, end)


def the_last_failure_undoes_first(lab: Lab) -> None:
    job = _undoable(lab, max_attempts=1)
    _undone(lab, lab.done(_fail_softly(job)), "dead:exhausted")


def a_crash_too_many_undoes_first(lab: Lab) -> None:
    job = _undoable(lab, crash_cap=1)
    lab.done(lifecycle.start(job))
    lab.lapse()
    [ending] = lab.reap()
    _undone(lab, ending, "dead:crashed")


def a_cancellation_that_nobody_answered_undoes_first(lab: Lab) -> None:
    job = _undoable(lab)
    lab.done(lifecycle.cancel(lab.read(job), RETENTION))
    lab.lapse()
    [ending] = lab.reap()
    assert not ending.cancel_requested
    _undone(lab, ending, "cancelled")


def a_waiting_job_that_is_cancelled_undoes_first(lab: Lab) -> None:
    waiting = lab.done(_sleep(_undoable(lab)))
    _undone(lab, lab.done(lifecycle.cancel(waiting, RETENTION)), "cancelled")


def an_overdue_job_undoes_first(lab: Lab) -> None:
    lab.done(_fail_softly(_undoable(lab, expires_after=SECOND)))
    lab.clock.advance(seconds=1)
    [ending] = lab.reap()
    assert lab.store.expired(10) == []
    _undone(lab, ending, "dead:expired")


def undoing_that_fails_is_tried_again_and_a_redrive_goes_on_with_it(lab: Lab) -> None:
    ending = lab.done(_settle_cancel(_undoable(lab, max_attempts=2)))
    again = lab.done(_fail_softly(lab.take(ending)))
    assert (again.state, again.attempt) == (State.RETRYING, 1)
    lab.clock.advance(microseconds=DELAY)
    dead = lab.done(_fail_softly(lab.take(again)))
    assert (dead.state, dead.cause, dead.flow) == (State.DEAD, Cause.EXHAUSTED, Flow(undoes=1, ending="cancelled"))
    redriven = lab.done(lifecycle.redrive(dead))
    assert (redriven.state, redriven.flow) == (State.QUEUED, dead.flow)
    _undone(lab, redriven, "cancelled")


def one_who_undoes_is_fenced_like_any_holder(lab: Lab) -> None:
    ending = lab.done(_fail_hard(_undoable(lab, crash_cap=9)))
    old = lab.take(ending)
    lab.done(lifecycle.note(old, "~undo:charge", None))
    lab.lapse()
    [lost] = lab.reap()
    lab.refused(lifecycle.undo(old, RETENTION), Answer.ALREADY_CLAIMED)
    lab.refused(lifecycle.note(old, "~undo:other", None), Answer.ALREADY_CLAIMED)
    held = lab.take(lost)
    over = lab.done(lifecycle.undo(held, RETENTION))
    assert (over.state, over.cause) == (State.DEAD, Cause.REJECTED)
    lab.refused(lifecycle.undo(old, RETENTION), Answer.NO_OP_TERMINAL)


def a_move_from_before_the_undoing_is_refused(lab: Lab) -> None:
    job = _undoable(lab)
    ending = lab.done(lifecycle.cancel(lab.done(_sleep(job)), RETENTION))
    for decide in (_complete, _fail_hard, lifecycle.release, _start):
        lab.refused(decide(job), Answer.ALREADY_CLAIMED)
    lab.refused(lifecycle.signal(ending._replace(flow=None, version=ending.version - 1), "s", "go", None),
                Answer.ALREADY_CLAIMED)  # fmt: skip


def a_success_undoes_nothing(lab: Lab) -> None:
    done = lab.done(_complete(_undoable(lab)))
    assert (done.state, done.flow) == (State.SUCCEEDED, Flow(undoes=1))


def purge_names_the_artifacts_that_nobody_owns_any_more(lab: Lab) -> None:
    def artifact(name: str) -> str:
        return f'{{"$artifact":{{"at":"file:///{name}"}}}}'

    job = lab.running(payload=artifact("in"))
    lab.done(lifecycle.checkpoint(job, "fetch", artifact("step")))
    lab.done(lifecycle.checkpoint(job, "ocr", '{"n":"$artifact"}'))
    lab.done(lifecycle.note(job, "~empty", None))
    lab.done(lifecycle.signal(lab.read(job), "s", "go", None))
    lab.done(lifecycle.complete(job, artifact("out"), RETENTION))
    lab.done(lifecycle.complete(lab.running(), '{"plain":1}', RETENTION))
    kept = lab.job(payload=artifact("kept"))
    assert lab.store.purge(10) == (0, [], 0)
    lab.clock.advance(microseconds=RETENTION.succeeded)
    purged = lab.store.purge(10)
    assert (purged.jobs, sorted(purged.artifacts)) == (2, sorted([artifact("in"), artifact("out"), artifact("step")]))
    assert lab.held(job.id) == (None, (), (), ())
    assert lab.read(kept) == kept


def _undoable(lab: Lab, **fields: object) -> JobRecord:
    """A running job that has recorded a step which can be undone."""
    job = lab.running(retry=BACKOFF, **fields)
    return lab.done(lifecycle.checkpoint(job, "charge", "1", undoable=True))


def _undone(lab: Lab, ending: JobRecord, end: str) -> None:
    """Claim a job that is ending, undo its steps and see it come to its end."""
    assert (ending.flow or PLAIN).ending == end
    held = lab.take(ending)
    lab.done(lifecycle.note(held, "~undo:charge", None))
    move = lifecycle.undo(held, RETENTION)
    over = lab.done(move)
    state, _, cause = end.partition(":")
    assert (over.state, over.cause or "", over.flow) == (State(state), cause, None)
    assert over.purge_at == lab.clock.now() + RETENTION.of(over.state)
    lab.refused(move, Answer.OK)
    assert lab.claim(id=ending.id) == []


def _start(job: JobRecord) -> Move:
    return lifecycle.start(job)


def _complete(job: JobRecord) -> Move:
    return lifecycle.complete(job, '"late"', RETENTION)


def _fail_softly(job: JobRecord) -> Move:
    return lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)


def _fail_hard(job: JobRecord) -> Move:
    return lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)


def _snooze(job: JobRecord) -> Move:
    return lifecycle.snooze(job, SECOND)


def _sleep(job: JobRecord) -> Move:
    return lifecycle.suspend(job, "~sleep", None, delay=SECOND)


def _settle_cancel(job: JobRecord) -> Move:
    return lifecycle.settle_cancel(job, RETENTION)
