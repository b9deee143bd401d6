"""Jobs that end together are noted together: each is purged when its time comes, whatever happens in between."""

from typing import Any

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import State
from holdfast.domain.moments import DAY, HOUR
from holdfast.domain.move import Answer
from holdfast.stores.dynamodb.settlement import Settlement
from holdfast.testing.conformance import Lab
from holdfast.testing.lab import RETENTION
from tests.aws.outside import Outside


def notes(outside: Outside) -> list[dict[str, Any]]:
    """Read the notes in the second table."""
    table = outside.dynamodb.query(
        TableName=f"{outside.table.name}-holdfast",
        KeyConditionExpression="PK = :pk",
        ExpressionAttributeValues={":pk": {"S": "ends"}},
    )
    return list(table["Items"])


def test_jobs_that_end_together_have_no_entry_in_the_index_and_are_purged_in_time(bench: Lab, outside: Outside) -> None:
    bench.jobs(5)
    claimed = bench.claim(5)
    alone, *others = claimed
    bench.done(lifecycle.complete(alone, None, RETENTION))
    bench.store.commit([lifecycle.complete(job, None, RETENTION) for job in others])
    entries = {id_: row.get("look") for id_, row in outside.rows().items()}
    assert entries == {alone.id: "ended#00", **{job.id: None for job in others}}
    bench.clock.advance(microseconds=RETENTION.succeeded - 1)
    assert bench.store.purge(10).jobs == 0
    bench.clock.advance(microseconds=1)
    assert [bench.store.purge(2).jobs for _ in range(4)] == [2, 2, 1, 0]
    assert (outside.rows(), notes(outside)) == ({}, [])


def test_one_that_was_noted_and_did_not_end_is_purged_when_it_has_ended(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.jobs(2)
    claimed = bench.claim(2)
    moves = [lifecycle.complete(job, None, RETENTION) for job in claimed]

    def die(*_: object) -> Answer:
        msg = "The worker is gone."
        raise StoreUnavailable(msg)

    with monkeypatch.context() as patch:
        patch.setattr(Settlement, "_settle", die)
        with pytest.raises(StoreUnavailable):
            bench.store.commit(moves)
    assert len(notes(outside)) == 1
    bench.clock.advance(microseconds=RETENTION.succeeded)
    assert bench.store.purge(10).jobs == 0
    assert len(notes(outside)) == 1, "it is looked at again in an hour"
    bench.store.commit(moves)
    assert {bench.read(job).state for job in claimed} == {State.SUCCEEDED}
    assert len(notes(outside)) == 2
    bench.clock.advance(microseconds=HOUR)
    assert bench.store.purge(10).jobs == 0
    bench.clock.advance(microseconds=RETENTION.succeeded)
    assert bench.store.purge(10).jobs == 2
    assert notes(outside) == []


def test_a_note_of_jobs_that_go_on_is_let_go_after_a_day(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.jobs(2)
    claimed = bench.claim(2, lease=90 * DAY)
    with monkeypatch.context() as patch:
        patch.setattr(Settlement, "_settle", lambda *_: Answer.ALREADY_CLAIMED)
        bench.store.commit([lifecycle.complete(job, None, RETENTION) for job in claimed])
    bench.clock.advance(microseconds=RETENTION.succeeded)
    for _ in range(25):
        bench.store.purge(10)
        bench.clock.advance(microseconds=HOUR)
    assert notes(outside) == []
    assert {bench.read(job).state for job in claimed} == {State.RUNNING}
