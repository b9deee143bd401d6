"""`ctx.transaction()`: a handler's writes and its job's completion commit together, or neither does (S24)."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Context, Holdfast, Retry
from holdfast.domain.job import State
from tests.stores.effects import Effects, effects_beside, lose_lease


@pytest.fixture
def bare(postgres_url: str, postgres_server: str) -> Iterator[Effects]:
    with effects_beside(postgres_url, postgres_server) as effects:
        yield effects


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    app = Holdfast(postgres_url, upkeep=0.05)
    yield app
    app.close()


def test_writes_and_completion_commit_together(app: Holdfast, bare: Effects) -> None:
    seen: list[tuple[list[int], str]] = []

    @app.job
    def note(n: int, ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": n})
        seen.append((bare.all(), app.get(ctx.job_id).state))
        return n * 2

    job = note.enqueue(7)
    app.run_worker(until_idle=True)
    assert seen == [([], "running")]
    assert (bare.all(), job.result(timeout=1)) == ([7], 14)
    assert list(app.store.check()) == []


def test_an_asynchronous_handler_has_one_too(app: Holdfast, bare: Effects) -> None:
    @app.job
    async def note(n: int, ctx: Context) -> str:
        async with ctx.transaction() as db:
            await db.execute(bare.write, {"n": n})
        return "noted"

    jobs = [note.enqueue(n) for n in range(5)]
    app.run_worker(until_idle=True)
    assert bare.all() == [0, 1, 2, 3, 4]
    assert {job.result(timeout=1) for job in jobs} == {"noted"}


def test_a_failure_after_the_block_undoes_it(app: Holdfast, bare: Effects) -> None:
    @app.job(permanent=(ValueError,))
    def note(n: int, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": n})
        if n < 10:
            raise ValueError

    failing, fine = note.enqueue(1), note.enqueue(11)
    app.run_worker(until_idle=True)
    assert (failing.refresh().state, fine.refresh().state, bare.all()) == ("dead", "succeeded", [11])


def test_an_error_that_the_handler_handles_undoes_the_block_only(app: Holdfast, bare: Effects) -> None:
    @app.job
    def note(n: int, ctx: Context) -> str:
        with contextlib.suppress(psycopg.Error), ctx.transaction() as db:
            db.execute(bare.write, {"n": n})
            db.execute("SELECT 1/0")
        return "handled"

    job = note.enqueue(1)
    app.run_worker(until_idle=True)
    assert (job.result(timeout=1), bare.all()) == ("handled", [])


def test_the_handler_cannot_commit_by_itself(app: Holdfast, bare: Effects) -> None:
    @app.job(permanent=(psycopg.ProgrammingError,))
    def note(n: int, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": n})
            db.commit()

    job = note.enqueue(1)
    app.run_worker(until_idle=True)
    assert (job.refresh().state, bare.all()) == ("dead", [])


def test_a_lost_lease_undoes_it(app: Holdfast, bare: Effects) -> None:
    """S9: the late completion is refused, and with it goes all that the handler wrote."""

    @app.job
    def note(n: int, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": n})
        if ctx.attempt == 1:
            lose_lease(app, ctx)

    job = note.enqueue(3)
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.attempt, bare.all()) == (State.SUCCEEDED, 2, [3])


def test_it_can_be_asked_for_twice(app: Holdfast, bare: Effects) -> None:
    @app.job
    def note(n: int, ctx: Context) -> None:
        for k in range(2):
            with ctx.transaction() as db:
                db.execute(bare.write, {"n": n + k})

    note.enqueue(1)
    app.run_worker(until_idle=True)
    assert bare.all() == [1, 2]


def test_it_is_opened_as_its_handler_runs(app: Holdfast, bare: Effects) -> None:
    @app.job(retry=Retry.fixed(0, retries=0))
    async def blocks(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": 1})

    @app.job(retry=Retry.fixed(0, retries=0))
    def awaits(ctx: Context) -> None:
        async def write() -> None:
            async with ctx.transaction() as db:
                await db.execute(bare.write, {"n": 2})

        asyncio.run(write())

    jobs = [blocks.enqueue(), awaits.enqueue()]
    app.run_worker(until_idle=True)
    assert [failure.code for job in jobs if (failure := job.refresh().failure)] == ["bad_input", "bad_input"]
    assert "opens its transaction with `async with ctx.transaction()`" in (app.attempts(jobs[0].id)[0].traceback or "")
    assert "opens its transaction with `with ctx.transaction()`" in (app.attempts(jobs[1].id)[0].traceback or "")
    assert bare.all() == []


def test_a_delivery_has_one_too(app: Holdfast, bare: Effects) -> None:
    @app.job
    def note(n: int, ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": n})
        return n

    job = note.enqueue(5)
    assert app.process(app.envelope(job.id)) == "claimed"
    assert (job.refresh().state, bare.all()) == ("succeeded", [5])


def test_connections_are_lent_again(app: Holdfast, bare: Effects) -> None:
    @app.job
    def note(n: int, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(bare.write, {"n": n})

    for n in range(60):
        note.enqueue(n)
    app.run_worker(until_idle=True)
    assert bare.all() == list(range(60))


def test_connections_that_died_meanwhile_are_not_lent_again(app: Holdfast, bare: Effects) -> None:
    @app.job
    def note(n: int, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("SET application_name = 'lent'")
            db.execute(bare.write, {"n": n})

    for n in range(3):
        job = note.enqueue(n)
        assert app.process(app.envelope(job.id)) == "claimed"
        assert (job.refresh().state, job.attempt) == ("succeeded", 1), "nobody's attempt was spent on a dead connection"
        bare.db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'lent'")
    assert bare.all() == [0, 1, 2]


def test_a_handler_may_have_its_rows_as_it_likes(app: Holdfast, bare: Effects) -> None:
    seen: list[Any] = []

    @app.job
    def note(n: int, ctx: Context) -> None:
        with ctx.transaction() as db:
            seen.append(db.execute("SELECT 1 AS one").fetchone())
            db.row_factory, db.cursor_factory = dict_row, psycopg.ClientCursor
            seen.append(db.execute("SELECT 1 AS one").fetchone())
            db.execute(bare.write, {"n": n})

    @app.job
    async def anote(n: int, ctx: Context) -> None:
        async with ctx.transaction() as db:
            db.row_factory = dict_row
            await db.execute(bare.write, {"n": n})

    for job in (note.enqueue(1), note.enqueue(2), anote.enqueue(3)):
        assert app.process(app.envelope(job.id)) == "claimed"
        assert job.refresh().state == "succeeded"
    assert bare.all() == [1, 2, 3]
    assert seen == [(1,), {"one": 1}] * 2, "and the next handler has them as ever"


def test_a_store_without_transactions_says_so() -> None:
    app = Holdfast("memory://")

    @app.job
    def note(ctx: Context) -> None:
        with ctx.transaction():
            pass

    job = note.enqueue()
    app.process(app.envelope(job.id))
    failure = job.refresh().failure
    assert failure is not None
    assert failure.code == "bad_input"
