"""Races between those who run jobs: claimers, holders, reapers."""

from functools import partial
from itertools import cycle

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord, State
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Beat, Store
from holdfast.testing.lab import FLAKY, LEASE, RETENTION, Lab
from holdfast.testing.races.start import together

_ROUNDS = 30
_REFUSED = {Answer.ALREADY_CLAIMED, Answer.NO_OP_TERMINAL}


def a_late_finisher_cannot_touch_the_next_attempt(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        old = lab.running(crash_cap=9)
        lab.lapse()
        [lost] = lab.reap()

        def next_attempt(lost: JobRecord = lost) -> list[Answer]:
            return lab.store.commit([lifecycle.complete(lab.take(lost), '"new"', RETENTION)])

        late = [lifecycle.complete(old, '"old"', RETENTION), lifecycle.fail(old, FLAKY, draw=0, retention=RETENTION)]
        moves = [lifecycle.checkpoint(old, "a step", '"old"'), late[round_ % 2]]
        refusals, settled = together(partial(lab.other.commit, moves), next_attempt)
        assert set(refusals) <= _REFUSED
        assert settled == [Answer.OK]
        done = lab.held(old.id)
        assert done.job is not None
        assert (done.job.state, done.job.result, done.job.token) == (State.SUCCEEDED, '"new"', 2)
        assert done.job.version == lost.version + 2
        assert (len(done.attempts), done.steps) == (1, ())


def a_heartbeat_and_a_reaper_never_both_win(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        lab.lapse()
        [late] = lab.store.expired(10)
        reaping = lifecycle.reap(late, lab.clock.now(), RETENTION)
        beat, reaped = together(partial(_beat, lab.store, job), partial(_commit, lab.other, reaping))
        after = lab.read(job)
        assert after.version == job.version + 1
        if reaped is Answer.OK:
            assert beat is Answer.ALREADY_CLAIMED
            assert (after.state, after.lease_id, after.crashes) == (State.RETRYING, None, 1)
        else:
            assert (beat, reaped) == (Answer.OK, Answer.ALREADY_CLAIMED)
            assert (after.state, after.lease_expires_at) == (State.RUNNING, lab.clock.now() + LEASE)
        _clear(lab)


def a_heartbeat_never_brings_back_a_finished_job(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        finish = lifecycle.complete(job, "1", RETENTION)
        beat, settled = together(partial(_beat, lab.store, job), partial(_commit, lab.other, finish))
        assert settled is Answer.OK
        assert beat in {Answer.OK, Answer.NO_OP_TERMINAL}
        after = lab.read(job)
        assert (after.state, after.lease_expires_at) == (State.SUCCEEDED, None)
        assert after.version == job.version + 1 + (beat is Answer.OK)


def two_claimers_never_share_a_job(lab: Lab) -> None:
    for round_ in range(3):
        jobs = lab.jobs(120, priority=round_)

        def drain(store: Store, owner: str, limit: int) -> list[JobRecord]:
            taken: list[JobRecord] = []
            while claimed := store.claim(lab.want(limit, owner=owner)):
                assert len(claimed) <= limit
                taken += claimed
            return taken

        stores = cycle([lab.store, lab.other])
        shares = together(*(partial(drain, next(stores), f"w{limit}", limit) for limit in (1, 3, 7, 11)))
        taken = [job for share in shares for job in share]
        assert sorted(job.id for job in taken) == sorted(job.id for job in jobs)
        assert {(job.token, job.attempt) for job in taken} == {(1, 1)}
        assert {job.id: job for job in taken} == {job.id: job for job in map(lab.read, jobs)}


def one_delivery_of_many_wins(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.job()
        stores = cycle([lab.store, lab.other])
        wants = [lab.want(owner=f"w{n}", id=job.id) for n in range(4)]
        answers = together(*(partial(next(stores).claim, want) for want in wants))
        [[winner]] = [answer for answer in answers if answer]
        assert lab.read(job) == winner
        assert winner.token == 1


def two_reapers_count_one_crash(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        lab.lapse()
        moves = [lifecycle.reap(store.expired(10)[0], lab.clock.now(), RETENTION) for store in (lab.store, lab.other)]
        answers = together(partial(_commit, lab.store, moves[0]), partial(_commit, lab.other, moves[1]))
        assert sorted(answers) == [Answer.ALREADY_CLAIMED, Answer.OK]
        after = lab.held(job.id)
        assert after.job is not None
        assert (after.job.crashes, after.job.version, len(after.attempts)) == (1, job.version + 1, 1)
        _clear(lab)


def a_give_back_and_a_reaper_end_one_attempt_once(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        lab.lapse()
        reaping = lifecycle.reap(job, lab.clock.now(), RETENTION)
        released, reaped = together(
            partial(_commit, lab.store, lifecycle.release(job)), partial(_commit, lab.other, reaping)
        )
        assert sorted([released, reaped]) == [Answer.ALREADY_CLAIMED, Answer.OK]
        after = lab.held(job.id)
        assert after.job is not None
        gone_back = released is Answer.OK
        assert (after.job.attempt, after.job.crashes) == ((0, 0) if gone_back else (1, 1))
        assert [attempt.outcome for attempt in after.attempts] == ["release" if gone_back else "reap"]
        _clear(lab)


def a_finisher_and_a_reaper_end_one_attempt_once(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.done(lifecycle.start(lab.running(crash_cap=1)))
        lab.lapse()
        reaping = lifecycle.reap(job, lab.clock.now(), RETENTION)
        finish = lifecycle.complete(job, "1", RETENTION)
        finished, reaped = together(partial(_commit, lab.store, finish), partial(_commit, lab.other, reaping))
        assert sorted([finished, reaped]) == [Answer.NO_OP_TERMINAL, Answer.OK]
        assert lab.read(job).state is (State.SUCCEEDED if finished is Answer.OK else State.DEAD)


def a_settlement_sent_twice_is_written_once(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        for move in (lifecycle.checkpoint(job, "fetch", "1"), lifecycle.complete(job, "1", RETENTION)):
            before = lab.read(job)
            answers = together(partial(_commit, lab.store, move), partial(_commit, lab.other, move))
            assert answers == [Answer.OK, Answer.OK]
            assert lab.read(job).version == before.version + 1
        assert len(lab.store.steps(job.id)) == 1


def a_step_recorded_by_two_hands_keeps_one_result(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        moves = [lifecycle.checkpoint(job, "fetch", f'"{side}"') for side in ("left", "right")]
        answers = together(partial(_commit, lab.store, moves[0]), partial(_commit, lab.other, moves[1]))
        assert answers == [Answer.OK, Answer.OK]
        [step] = lab.store.steps(job.id)
        assert step.result in {'"left"', '"right"'}
        assert lab.read(job).step_cursor == 1


def an_abandoned_owner_s_heartbeat_and_the_reaper_agree(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()

        def rescue(job: JobRecord = job) -> Answer:
            lab.other.abandon("ada")
            return lab.other.commit(
                [lifecycle.reap(late, lab.clock.now(), RETENTION) for late in lab.other.expired(1)] or [_reap(job)]
            )[0]

        beat, reaped = together(partial(_beat, lab.store, job), rescue)
        after = lab.read(job)
        assert (after.state is State.RETRYING) == (reaped is Answer.OK)
        assert beat is Answer.OK or after.state is State.RETRYING
        _clear(lab)


def _reap(job: JobRecord) -> Move:
    """Decide from the record as claimed, which the abandoning has made stale."""
    return lifecycle.reap(job, (job.lease_expires_at or 0) + 1, RETENTION)


def _commit(store: Store, move: Move) -> Answer:
    [answer] = store.commit([move])
    return answer


def _beat(store: Store, job: JobRecord) -> Answer:
    [answer] = store.heartbeat([Beat(job.id, job.token, str(job.lease_id), begun=True)], LEASE)
    return answer


def _clear(lab: Lab) -> None:
    """Leave nothing for the next round to trip over."""
    lab.lapse()
    lab.reap()
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in lab.claim(10)])
