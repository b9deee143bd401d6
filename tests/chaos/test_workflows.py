"""Workflows of 20 steps whose workers are killed with -9 at any moment: what is on record is never run again.

`HOLDFAST_CHAOS_KILLS` chooses the form: 40 runs and 5 kills, or, from 50 on, 500 runs and 200 kills.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos import flows
from tests.chaos.yard import FULL, Yard, opened

RUNS, KILLS = (500, 200) if FULL else (40, 5)
CREW = 3


@pytest.fixture(params=["sqlite", "postgres"])
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    with closing(opened(request, tmp_path)) as yard:
        yield yard


def test_no_step_is_run_again_once_it_is_on_record_however_often_workers_are_killed(yard: Yard) -> None:
    jobs = yard.app.enqueue_many([flows.prepared(yard.app, n) for n in range(RUNS)])
    yard.hire(CREW, "-c", "4")
    bodies = RUNS * flows.STEPS
    for kill in range(KILLS):
        share = bodies * (kill + 1) * 5 // (KILLS * 6)
        yard.until(lambda share=share: yard.lines() >= share, "progress")  # type: ignore[misc]
        yard.replace_one("-c", "4")
    yard.until(lambda: not yard.unfinished(), "the end", 300)
    assert yard.killed_at_work == KILLS
    begun = Counter(tuple(line.split()) for line in yard.ledger.read_text().splitlines())
    assert max(begun.values()) == 1, "a body began twice under one claim"
    by_step: dict[tuple[str, str], list[int]] = {}
    for id_, step, token in begun:
        by_step.setdefault((id_, step), []).append(int(token))
    again = reaped = 0
    for n, job in enumerate(jobs):
        assert (job.refresh().state, job.result(1)) == ("succeeded", flows.expected(n))
        attempts = yard.app.attempts(job.id)
        reaped += sum(attempt.outcome == "reap" for attempt in attempts)
        claimed = {attempt.token: attempt.claimed_at or 0 for attempt in attempts}
        steps = {step.name: step.recorded_at for step in job.steps()}
        assert set(steps) - {"nap"} == {f"s{place}" for place in range(flows.STEPS)}
        assert len(steps) == len(job.steps()), "a step is on record twice"
        for place in range(flows.STEPS):
            tokens = by_step[str(job.id), f"s{place}"]
            again += len(tokens) - 1
            late = [token for token in tokens if claimed[token] > steps[f"s{place}"]]
            assert late == [], f"s{place} of {job.id} began under a claim that was made after its record"
    assert len(by_step) == bodies
    assert reaped, "nobody had anything in hand when they were killed"
    assert again <= KILLS * CREW * 4, "more was run again than the dead had in hand"
    yard.assert_sound()
    yard.dismiss()
