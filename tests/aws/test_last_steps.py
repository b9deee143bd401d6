"""The last step of a pipeline is recorded by the write that completes its job: a write less, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.aws import metered
from holdfast import Context, Holdfast, Permanent, Retry, Step
from holdfast.client.job import Job
from holdfast.domain.job import State
from holdfast.stores.dynamodb.address import parse
from tests.aws import emulator


@pytest.fixture(params=[emulator.table_of, emulator.contract_of], ids=["dynamodb", "dynamodb+sqs"])
def app(aws_endpoint: str, request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    url = request.param(aws_endpoint)
    app = Holdfast(url)
    yield app
    app.close()
    emulator.drop(url)


def steps(app: Holdfast, job: Job[Any]) -> dict[str, str | None]:
    return {step.name: step.result for step in app.store.steps(str(job.id))}


@pytest.mark.parametrize("result", [3, "sent", None, {"to": ["ada"]}], ids=repr)
def test_a_job_of_two_steps_is_written_three_times(app: Holdfast, result: Any) -> None:
    def first(payload: str) -> int:
        return 1

    def last(payload: str) -> Any:
        return result

    job = app.pipeline("pipe", [first, last]).enqueue("x")
    with metered(parse(app.url)) as meter:
        app.run_worker(until_idle=True)
    written = [call for call in meter.calls if str(job.id) in str(call.params) and "Write" in call.operation]
    changed = [call for call in meter.calls if str(job.id) in str(call.params) and call.operation == "UpdateItem"]
    assert len(written) + len(changed) == 3, "claimed, the first step recorded, completed with the last"
    assert (job.refresh().state, job.result(1), job.step_cursor) == (State.SUCCEEDED, result, 2)
    assert list(steps(app, job)) == ["first", "last"]
    assert steps(app, job)["last"] == job.record.result


def test_a_job_that_is_to_be_cancelled_while_its_last_step_runs_is_cancelled(app: Holdfast) -> None:
    def first(payload: str) -> int:
        return 1

    def last(payload: str, ctx: Context) -> int:
        app.get(ctx.job_id).cancel()
        return 2

    job = app.pipeline("pipe", [first, Step(last)]).enqueue("x")
    app.run_worker(until_idle=True)
    assert job.refresh().state == State.CANCELLED
    assert list(steps(app, job)) == ["first"]


def _unserialisable(payload: str) -> Any:
    return object()


def _hopeless(payload: str) -> int:
    raise Permanent("no")


@pytest.mark.parametrize("last", [_unserialisable, _hopeless])
def test_a_last_step_that_fails_ends_its_job_as_any_other_does(app: Holdfast, last: Callable[[str], Any]) -> None:
    def first(payload: str) -> int:
        return 1

    job = app.pipeline("pipe", [first, Step(last, name="last")]).enqueue("x")
    app.run_worker(until_idle=True)
    assert job.refresh().state == State.DEAD
    assert list(steps(app, job)) == ["first"]


def test_a_last_step_that_is_tried_again_is_recorded_when_it_succeeds(app: Holdfast) -> None:
    tries: list[int] = []

    def last(payload: str) -> int:
        tries.append(1)
        if len(tries) < 2:
            raise OSError
        return 7

    job = app.pipeline("pipe", [Step(last, retry=Retry.fixed(0.01, retries=3))]).enqueue("x")
    app.run_worker(until_idle=True)
    assert (job.result(1), len(tries), steps(app, job)) == (7, 2, {"last": "7"})


def test_events_of_a_last_step_are_told_as_ever(aws_endpoint: str) -> None:
    url = emulator.contract_of(aws_endpoint)
    app = Holdfast(url, events=True)

    def only(payload: str) -> int:
        return 1

    job = app.pipeline("pipe", [only]).enqueue("x")
    app.run_worker(until_idle=True)
    told = [event.name for event in app.store.events(0, 10) if event.job_id == str(job.id)]
    app.close()
    emulator.drop(url)
    assert told == ["workflow_run_started", "workflow_step_completed", "workflow_run_completed"]
