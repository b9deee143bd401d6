"""`ctx.transaction()` in a step's body: its writes and the step's record commit together, or neither does (S24)."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from holdfast import Context, Holdfast, Retry
from tests.servers import link, own, until, working
from tests.stores.effects import Effects, effects_beside, lose_lease

NOW = Retry.fixed(0, retries=3)


@pytest.fixture
def effects(postgres_url: str, postgres_server: str) -> Iterator[Effects]:
    with effects_beside(postgres_url, postgres_server) as effects:
        yield effects


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(postgres_url, upkeep=0.05)) as app:
        yield app
        assert list(app.store.check()) == []


def test_what_a_step_wrote_stays_though_the_workflow_fails_after_it(app: Holdfast, effects: Effects) -> None:
    runs = Counter[str]()

    def note(ctx: Context, n: int) -> int:
        runs["note"] += 1
        with ctx.transaction() as db:
            db.execute(effects.write, {"n": n})
        return n

    @app.workflow(retry=NOW)
    def book(n: int, ctx: Context) -> int:
        runs["book"] += 1
        noted: int = ctx.step("note", note, ctx, n)
        assert effects.all() == [n], "committed with the record of the step, not with the end of the job"
        if runs["book"] == 1:
            raise ConnectionError
        return noted + 1

    job = book.enqueue(7)
    app.run_worker(until_idle=True)
    assert (job.result(timeout=1), effects.all(), runs) == (8, [7], {"note": 1, "book": 2})


def test_steps_side_by_side_have_a_transaction_each_and_a_sleep_keeps_what_is_recorded(
    app: Holdfast, effects: Effects
) -> None:
    runs = Counter[int]()

    @app.workflow(retry=NOW)
    async def book(ctx: Context) -> list[int]:
        async def note(n: int) -> int:
            runs[n] += 1
            async with ctx.transaction() as db:
                await db.execute(effects.write, {"n": n})
                await asyncio.sleep(0.01)
                if n == 2 and runs[n] == 1:
                    raise ConnectionError
            return n

        noted = await asyncio.gather(*(ctx.step(f"note {n}", note, n, retry=NOW) for n in range(5)))
        await ctx.sleep("rest", timedelta(seconds=3))
        return noted

    job = book.enqueue()
    with working(app):
        until(lambda: len(effects.all()) == 5, "the steps")
        until(lambda: job.refresh().state == "retrying", "the sleep")
        assert effects.all() == [0, 1, 2, 3, 4]
        until(lambda: job.refresh().state == "succeeded", "the end")
    assert (effects.all(), runs) == ([0, 1, 2, 3, 4], {0: 1, 1: 1, 2: 2, 3: 1, 4: 1})


def test_a_pipelines_steps_have_one_each(app: Holdfast, effects: Effects) -> None:
    runs = Counter[str]()

    def first(n: int, ctx: Context) -> int:
        runs["first"] += 1
        with ctx.transaction() as db:
            db.execute(effects.write, {"n": n})
        return n + 1

    def second(n: int) -> int:
        runs["second"] += 1
        if runs["second"] == 1:
            raise ConnectionError
        return n + 1

    def third(n: int, ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute(effects.write, {"n": n + 2})
        return n + 3

    ingest = app.pipeline("ingest", [first, second, third], retry=NOW)
    jobs = [ingest.enqueue(n) for n in (10, 20)]
    app.run_worker(until_idle=True)
    assert [job.result(timeout=1) for job in jobs] == [13, 23]
    assert (effects.all(), runs) == ([10, 12, 20, 22], {"first": 2, "second": 3})


def test_s9_a_lost_lease_undoes_what_the_step_wrote(app: Holdfast, effects: Effects) -> None:
    def note(ctx: Context, n: int) -> int:
        with ctx.transaction() as db:
            db.execute(effects.write, {"n": n + ctx.attempt})
        if ctx.attempt == 1:
            lose_lease(app, ctx)
        return n

    @app.workflow(retry=NOW)
    def book(n: int, ctx: Context) -> None:
        ctx.step("note", note, ctx, n)

    job = book.enqueue(40)
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.attempt, effects.all()) == ("succeeded", 2, [42])


def test_a_result_that_cannot_be_recorded_undoes_what_the_step_wrote(app: Holdfast, effects: Effects) -> None:
    def note(ctx: Context, n: int) -> object:
        with ctx.transaction() as db:
            db.execute(effects.write, {"n": n})
        return object()

    @app.workflow(retry=NOW)
    def book(n: int, ctx: Context) -> str:
        try:
            ctx.step("note", note, ctx, n)
        except Exception as error:  # noqa: BLE001 - whatever it is, the workflow goes on
            return type(error).__name__
        return "noted"

    job = book.enqueue(1)
    app.run_worker(until_idle=True)
    assert (job.result(timeout=1), effects.all()) == ("Permanent", [])


@pytest.mark.parametrize("lost", ["the answer to the commit", "the connection before it"])
def test_s3_a_commit_of_which_nobody_knows_is_found_out(lost: str) -> None:
    with own() as server, link(server.port) as line:
        near, far = server.address, server.address.replace(str(server.port), str(line.port))
        with psycopg.connect(near, autocommit=True) as db, closing(Holdfast(far, upkeep=0.05)) as app:
            db.execute("CREATE TABLE noted (n integer)")
            runs = Counter[str]()

            def note(ctx: Context, n: int) -> int:
                runs["note"] += 1
                with ctx.transaction() as ours:
                    ours.execute("INSERT INTO noted VALUES (%s)", (n,))
                    if runs["note"] == 1 and lost == "the answer to the commit":
                        line.lose_answer_to(b"COMMIT")
                    elif runs["note"] == 1:
                        db.execute("SELECT pg_terminate_backend(%s, 5000)", (ours.info.backend_pid,))
                return n

            @app.workflow(retry=NOW)
            def book(n: int, ctx: Context) -> None:
                ctx.step("note", note, ctx, n)

            job = book.enqueue(5)
            app.run_worker(until_idle=True)
            assert (job.refresh().state, job.attempt) == ("succeeded", 1), "nobody's attempt was spent on it"
            assert db.execute("SELECT n FROM noted").fetchall() == [(5,)]
            assert (runs["note"], line.lost) == ((1, 1) if lost == "the answer to the commit" else (2, 0))
            assert list(app.store.check()) == []
