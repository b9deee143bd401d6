"""Where steps lie on DynamoDB: in the job's item while there is room, apart after that; both are one list."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.domain import codec, lifecycle
from holdfast.domain.job import JobRecord, State
from holdfast.domain.move import Answer
from holdfast.stores import open_store
from holdfast.stores.dynamodb import DynamoStore
from holdfast.stores.dynamodb.items import side
from holdfast.stores.dynamodb.steps import ROOM, steps_of
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import DELAY, FLAKY, RETENTION
from tests.aws import emulator

LAYOUTS = {"dynamodb": emulator.table_of, "dynamodb+sqs": emulator.contract_of}


@pytest.fixture(params=list(LAYOUTS.values()), ids=list(LAYOUTS))
def bench(aws_endpoint: str, request: pytest.FixtureRequest) -> Iterator[Lab]:
    url = request.param(aws_endpoint)
    with lab(lambda clock: open_store(url, clock)) as bench:
        bench.counts()
        yield bench
    emulator.drop(url)


def inside(bench: Lab, job: JobRecord) -> list[str]:
    """Name the steps in a job's item."""
    return [step.name for _, step in steps_of(row(bench, job)).inside]


def row(bench: Lab, job: JobRecord) -> dict[str, Any]:
    """Read a job's item, past all that the store remembers."""
    store = bench.store
    assert isinstance(store, DynamoStore)
    return store._records.item(job.id) or {}


def apart(bench: Lab, job: JobRecord, name: str) -> dict[str, Any] | None:
    """Read the item of a step that lies apart."""
    store = bench.store
    assert isinstance(store, DynamoStore)
    return store._wire.get(side(job.id, "step", name))


def told(bench: Lab, job: JobRecord) -> list[tuple[str, str | None]]:
    """List a job's steps, as another process does."""
    return [(step.name, step.result) for step in bench.other.steps(job.id)]


def test_steps_lie_in_the_item_until_there_is_no_room_and_apart_from_then_on(bench: Lab) -> None:
    job = bench.running()
    large = f'"{"x" * (ROOM // 2)}"'
    results = {"a": "1", "b": None, "c": large, "d": large, "e": "5"}
    for name, result in results.items():
        bench.done(lifecycle.checkpoint(job, name, result))
    assert inside(bench, job) == ["a", "b", "c"]
    assert [name for name in results if apart(bench, job, name)] == ["d", "e"]
    assert told(bench, job) == list(results.items())


def test_a_step_is_recorded_once_wherever_it_lies(bench: Lab) -> None:
    job = bench.running()
    bench.done(lifecycle.checkpoint(job, "small", "1"))
    bench.done(lifecycle.checkpoint(job, "large", f'"{"x" * ROOM}"'))
    for name in ("small", "large"):
        bench.refused(lifecycle.checkpoint(job, name, "2"), Answer.OK)
        assert bench.other.commit([lifecycle.checkpoint(job, name, "3")]) == [Answer.OK]
    bench.lapse()
    [late] = bench.reap()
    again = bench.take(late)
    bench.refused(lifecycle.checkpoint(job, "small", "4"), Answer.ALREADY_CLAIMED)
    bench.refused(lifecycle.checkpoint(again, "small", "5"), Answer.OK)
    assert bench.done(lifecycle.suspend(again, "small", "6", delay=0)).state is State.RETRYING
    assert told(bench, job) == [("small", "1"), ("large", f'"{"x" * ROOM}"')]


def test_steps_in_the_item_go_where_it_goes(bench: Lab) -> None:
    job = bench.running(key="once", tenant="ada")
    bench.done(lifecycle.checkpoint(job, "first", "1"))
    failed = bench.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    bench.clock.advance(microseconds=DELAY)
    [again] = bench.other.claim(bench.want(id=failed.id))
    assert bench.store.commit([lifecycle.checkpoint(again, "second", "2")]) == [Answer.OK]
    assert bench.other.commit([lifecycle.complete(again, None, RETENTION)]) == [Answer.OK]
    assert inside(bench, job) == ["first", "second"]
    assert told(bench, job) == [("first", "1"), ("second", "2")]


def test_what_was_recorded_of_a_job_before_its_first_claim_goes_where_it_goes_too(bench: Lab) -> None:
    job = bench.job()
    hold = lifecycle.postpone(job, 0)._replace(step="~note", result="1")
    assert bench.other.commit([hold]) == [Answer.OK]
    [held] = bench.claim(1)
    assert bench.store.commit([lifecycle.complete(held, None, RETENTION)]) == [Answer.OK]
    assert told(bench, job) == [("~note", "1")]


def test_a_step_that_was_once_put_apart_stays_readable_beside_those_in_the_item(bench: Lab) -> None:
    store, job = bench.store, bench.running()
    assert isinstance(store, DynamoStore)
    old = {"name": {"S": "old"}, "result": {"S": "1"}, "order": {"N": "2"}, "recorded_at": {"N": "7"}}
    store._wire.write_all(puts=[side(job.id, "step", "old").key | old])
    bench.done(lifecycle.checkpoint(job, "new", "2"))
    assert inside(bench, job) == ["new"]
    assert told(bench, job) == [("old", "1"), ("new", "2")]


def test_a_job_that_starts_out_with_steps_has_them_apart_and_records_none_of_them_again(bench: Lab) -> None:
    job = bench.running(steps=(("first", "1"),))
    bench.refused(lifecycle.checkpoint(job, "first", "2"), Answer.OK)
    bench.done(lifecycle.checkpoint(job, "second", "3"))
    assert (inside(bench, job), told(bench, job)) == ([], [("first", "1"), ("second", "3")])


def test_a_purge_gives_the_artifacts_of_steps_in_the_item(bench: Lab) -> None:
    job, reference = bench.running(), f"{codec.ARTIFACT}abc"
    bench.done(lifecycle.checkpoint(job, "first", reference))
    done = bench.done(lifecycle.complete(job, None, RETENTION))
    assert inside(bench, job) == ["first"]
    bench.clock.advance(microseconds=(done.purge_at or 0) - bench.clock.now())
    assert bench.store.purge(10).artifacts == [reference]
    assert (bench.store.read([job.id]), bench.store.steps(job.id)) == ([None], [])
