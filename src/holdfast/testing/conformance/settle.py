"""Writing moves: each verb leaves exactly the record, the attempt and the step that the lifecycle decided."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from holdfast.domain import lifecycle
from holdfast.domain.job import Cause, Failure, JobRecord, State
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer, Held, Move, Verb
from holdfast.testing.lab import DELAY, FLAKY, HOPELESS, LEASE, RETENTION, Lab


def starting_records_when_the_handler_began(lab: Lab) -> None:
    job = lab.running()
    lab.clock.advance(seconds=3)
    begun = lab.done(lifecycle.start(job))
    assert begun.begun_at == lab.clock.now()
    assert begun.state is State.RUNNING


def completing_keeps_the_result(lab: Lab) -> None:
    for result in ('{"ok":true}', "null", None, '""'):
        job = lab.running()
        lab.clock.advance(seconds=3)
        done = lab.done(lifecycle.complete(job, result, RETENTION))
        assert (done.state, done.result, done.finished_at) == (State.SUCCEEDED, result, lab.clock.now())
        assert done.purge_at == lab.clock.now() + RETENTION.succeeded
        assert lab.store.attempts(job.id) == []


def a_completion_can_record_the_last_step(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.checkpoint(job, "fetch", "1"))
    last = lifecycle.complete(job, '"sent"', RETENTION)._replace(step="send", advance=1, yields=True)
    done = lab.done(last)
    assert (done.state, done.result, done.step_cursor) == (State.SUCCEEDED, '"sent"', 2)
    assert [(step.name, step.result) for step in lab.store.steps(job.id)] == [("fetch", "1"), ("send", '"sent"')]
    lab.refused(last, Answer.OK)


def a_completion_that_records_a_step_gives_way_to_a_cancellation(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.cancel(job, RETENTION))
    last = lifecycle.complete(job, None, RETENTION)._replace(step="send", advance=1, yields=True)
    lab.refused(last, Answer.CANCEL_REQUESTED)
    lab.done(lifecycle.settle_cancel(job, RETENTION))


def completing_after_a_failure_forgets_the_failure(lab: Lab) -> None:
    failed = lab.in_state(State.RETRYING)
    lab.clock.advance(microseconds=DELAY)
    assert lab.done(lifecycle.complete(lab.take(failed), None, RETENTION)).failure is None
    assert [attempt.code for attempt in lab.store.attempts(failed.id)] == ["flaky"]


def a_retryable_failure_waits_out_its_backoff(lab: Lab) -> None:
    job = lab.running(retry="exponential:4000000:0.5:99000000")
    lab.clock.advance(seconds=1)
    move = lifecycle.fail(job, FLAKY, draw=0.5, retention=RETENTION, traceback="Traceback …\n  boom ☂")
    failed = lab.done(move)
    assert (failed.state, failed.failure, failed.finished_at) == (State.RETRYING, FLAKY, None)
    assert failed.available_at == lab.clock.now() + 5 * SECOND
    assert lab.store.attempts(job.id)[0].traceback == "Traceback …\n  boom ☂"
    assert lab.claim() == []
    lab.clock.advance(seconds=5)
    assert lab.take(failed).attempt == 2


def the_last_failure_ends_a_job_as_exhausted(lab: Lab) -> None:
    job = lab.running(max_attempts=2)
    failed = lab.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    lab.clock.advance(microseconds=DELAY)
    dead = lab.done(lifecycle.fail(lab.take(failed), FLAKY, draw=0, retention=RETENTION))
    assert (dead.state, dead.cause, dead.attempt) == (State.DEAD, Cause.EXHAUSTED, 2)
    assert dead.purge_at == lab.clock.now() + RETENTION.dead
    assert len(lab.store.attempts(job.id)) == 2


def a_permanent_failure_ends_a_job_as_rejected(lab: Lab) -> None:
    dead = lab.done(lifecycle.fail(lab.running(), HOPELESS, draw=0, retention=RETENTION))
    assert (dead.state, dead.cause, dead.failure) == (State.DEAD, Cause.REJECTED, HOPELESS)


def a_failure_keeps_its_words(lab: Lab) -> None:
    failure = Failure("näïve.code", 'it\'s "broken"; -- 100 % \\ 漢字 🦀\n\tend', retryable=True)
    failed = lab.done(lifecycle.fail(lab.running(), failure, draw=0, retention=RETENTION))
    assert failed.failure == failure
    [attempt] = lab.store.attempts(failed.id)
    assert (attempt.code, attempt.message) == (failure.code, failure.message)


def giving_a_job_back_returns_the_attempt(lab: Lab) -> None:
    job = lab.running(max_attempts=1)
    for _ in range(3):
        back = lab.done(lifecycle.release(job))
        assert (back.state, back.attempt, back.available_at) == (State.RETRYING, 0, lab.clock.now())
        job = lab.take(back)
    assert [attempt.outcome for attempt in lab.store.attempts(job.id)] == ["release"] * 3
    assert (job.token, job.attempt) == (4, 1)


def snoozing_puts_a_job_off_and_returns_the_attempt(lab: Lab) -> None:
    job = lab.running(max_attempts=1)
    snoozed = lab.done(lifecycle.snooze(job, 7 * SECOND))
    assert (snoozed.attempt, snoozed.available_at) == (0, lab.clock.now() + 7 * SECOND)
    assert lab.claim() == []
    lab.clock.advance(seconds=7)
    assert lab.take(snoozed).attempt == 1


def a_step_is_recorded_with_its_cursor(lab: Lab) -> None:
    job = lab.running(steps_total=3)
    for number, name in enumerate(["fetch", "ocr", "ocr#2"], start=1):
        lab.clock.advance(seconds=1)
        assert lab.done(lifecycle.checkpoint(job, name, f'{{"n":{number}}}')).step_cursor == number
    steps = lab.store.steps(job.id)
    assert [(step.name, step.result) for step in steps] == [
        ("fetch", '{"n":1}'),
        ("ocr", '{"n":2}'),
        ("ocr#2", '{"n":3}'),
    ]
    assert [step.recorded_at for step in steps] == [
        lab.clock.now() - 2 * SECOND,
        lab.clock.now() - SECOND,
        lab.clock.now(),
    ]


def a_recorded_step_is_never_recorded_again(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.checkpoint(job, "fetch", "1"))
    lab.clock.advance(seconds=1)
    lab.refused(lifecycle.checkpoint(job, "fetch", "1"), Answer.OK)
    lab.refused(lifecycle.checkpoint(job, "fetch", "2"), Answer.OK)
    assert lab.read(job).step_cursor == 1


def steps_outlive_the_attempt_that_recorded_them(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.checkpoint(job, "fetch", "1"))
    dead = lab.done(lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION))
    again = lab.take(lab.done(lifecycle.redrive(dead)))
    assert again.step_cursor == 1
    lab.refused(lifecycle.checkpoint(again, "fetch", "2"), Answer.OK)
    lab.done(lifecycle.checkpoint(again, "ocr", "2"))
    assert [(step.name, step.result) for step in lab.store.steps(job.id)] == [("fetch", "1"), ("ocr", "2")]


def steps_with_one_name_belong_to_their_own_jobs(lab: Lab) -> None:
    lab.jobs(2)
    left, right = lab.claim(2)
    moves = [
        lifecycle.checkpoint(left, "s", "1"),
        lifecycle.checkpoint(right, "s", "2"),
        lifecycle.checkpoint(right, "t", "3"),
    ]
    assert lab.store.commit(moves) == [Answer.OK] * 3
    assert [[step.result for step in lab.store.steps(job.id)] for job in (left, right)] == [["1"], ["2", "3"]]


def several_moves_of_one_job_are_written_in_order(lab: Lab) -> None:
    job = lab.running()
    moves = [
        lifecycle.start(job),
        lifecycle.checkpoint(job, "a", "1"),
        lifecycle.checkpoint(job, "a", "2"),
        lifecycle.checkpoint(job, "b", "3"),
        lifecycle.complete(job, "4", RETENTION),
        lifecycle.release(job),
    ]
    assert lab.store.commit(moves) == [Answer.OK] * 5 + [Answer.NO_OP_TERMINAL]
    done = lab.read(job)
    assert (done.state, done.step_cursor, done.version) == (State.SUCCEEDED, 2, job.version + 4)


def a_settlement_asked_again_answers_ok_and_changes_nothing(lab: Lab) -> None:
    for decide in (_complete, _fail_softly, _fail_hard, lifecycle.release, _snooze, _settle_cancel):
        move = decide(lab.running())
        lab.done(move)
        lab.clock.advance(seconds=1)
        lab.refused(move, Answer.OK)
        assert lab.store.commit([move, move]) == [Answer.OK, Answer.OK]


def a_settlement_asked_twice_in_one_call_is_written_once(lab: Lab) -> None:
    job = lab.running()
    move = lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)
    assert lab.store.commit([move, move]) == [Answer.OK, Answer.OK]
    assert lab.read(job).version == job.version + 1
    assert len(lab.store.attempts(job.id)) == 1


def a_holder_cannot_settle_differently_the_second_time(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.release(job))
    lab.refused(_complete(job), Answer.ALREADY_CLAIMED)
    lab.refused(lifecycle.checkpoint(job, "s", None), Answer.ALREADY_CLAIMED)
    lab.refused(lifecycle.start(job), Answer.ALREADY_CLAIMED)


def one_refusal_does_not_disturb_the_rest_of_a_commit(lab: Lab) -> None:
    lab.jobs(4)
    jobs = lab.claim(4)
    stale = _complete(jobs[1])._replace(guard=Held(99, "not mine"))
    absent = _complete(jobs[2])._replace(id=lab.ids.take(1)[0])
    moves = [_complete(jobs[0]), stale, absent, _fail_softly(jobs[2]), _complete(jobs[3])]
    assert lab.store.commit(moves) == [Answer.OK, Answer.ALREADY_CLAIMED, Answer.ABSENT, Answer.OK, Answer.OK]
    assert [lab.read(job).state for job in jobs] == [State.SUCCEEDED, State.RUNNING, State.RETRYING, State.SUCCEEDED]


def committing_nothing_is_allowed(lab: Lab) -> None:
    assert lab.store.commit([]) == []
    assert lab.store.heartbeat([], LEASE) == []


def an_exchange_commits_and_then_claims(lab: Lab) -> None:
    job, spare = lab.running(), lab.job()
    answers, claimed = lab.store.exchange([lifecycle.release(job), _complete(job)], lab.want(5))
    assert answers == [Answer.OK, Answer.ALREADY_CLAIMED]
    assert sorted(one.id for one in claimed) == sorted([job.id, spare.id])
    assert [lab.read(one) for one in claimed] == claimed
    assert lab.store.exchange([], lab.want(5)) == ([], [])


def every_move_bumps_the_version_by_one(lab: Lab) -> None:
    job = lab.job(state=State.CREATED)
    versions = [job.version]
    for move in (lifecycle.submit, lab.take, lifecycle.start, _checkpoint, _cancel, _settle_cancel):
        moved = move(job)
        job = moved if isinstance(moved, JobRecord) else lab.done(moved)
        versions.append(job.version)
    assert versions == [1, 2, 3, 4, 5, 6, 7]


def the_history_is_as_long_as_the_attempts(lab: Lab) -> None:
    job = lab.job(max_attempts=4, crash_cap=9)
    outcomes = []
    for decide in (_fail_softly, _snooze, None, lifecycle.release, _fail_softly, _fail_softly):
        job = lab.take(job)
        if decide is None:
            lab.lapse()
            [job] = lab.reap()
            outcomes.append(Verb.REAP.value)
        else:
            job = lab.done(decide(job))
            outcomes.append("release" if decide is lifecycle.release else "snooze" if decide is _snooze else "fail")
        lab.clock.advance(minutes=1)
    attempts = lab.store.attempts(job.id)
    assert job.state is State.DEAD
    assert [attempt.outcome for attempt in attempts] == outcomes
    assert [attempt.token for attempt in attempts] == [1, 2, 3, 4, 5, 6]
    assert sum(attempt.outcome not in ("release", "snooze") for attempt in attempts) == job.attempt == 4


def _complete(job: JobRecord) -> Move:
    return lifecycle.complete(job, '"late"', RETENTION)


def _fail_softly(job: JobRecord) -> Move:
    return lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)


def _fail_hard(job: JobRecord) -> Move:
    return lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)


def _snooze(job: JobRecord) -> Move:
    return lifecycle.snooze(job, SECOND)


def _checkpoint(job: JobRecord) -> Move:
    return lifecycle.checkpoint(job, "a step", None)


def _cancel(job: JobRecord) -> Move:
    return lifecycle.cancel(job, RETENTION)


def _settle_cancel(job: JobRecord) -> Move:
    return lifecycle.settle_cancel(job, RETENTION)
