"""Credits: set aside when a job is enqueued, spent by its steps, given back at its end."""

from typing import Any

import pytest

from holdfast import BadInput, Context, Holdfast, InsufficientCredits, Retry
from holdfast.testing.engine import TestHoldfast
from tests.workers import Working
from tests.workflows.conftest import Until
from tests.workflows.reading import AGAIN, OFTEN, ONCE, code, names


def account(app: Holdfast, tenant: str = "acme") -> tuple[int, int, int]:
    """Give what is granted, reserved and spent; the entries add up to it."""
    found = app.account(tenant)
    assert found is not None
    entries = app.ledger(tenant, 1000)
    assert found.granted == sum(entry.granted for entry in entries)
    assert found.reserved == sum(entry.reserved for entry in entries)
    assert found.spent == sum(entry.spent for entry in entries)
    assert found.reserved >= 0
    assert found.available >= 0
    return found.granted, found.reserved, found.spent


def spending(app: Holdfast, *costs: int, **options: Any) -> Any:
    """Make a workflow whose steps cost so much."""

    @app.workflow(**{"name": "flow", "retry": ONCE, **options})
    def flow(ctx: Context) -> str:
        for number, cost in enumerate(costs):
            ctx.step(f"s{number}", lambda cost=cost: ctx.spend(cost))
        return "done"

    return flow


def test_what_is_not_spent_is_given_back_at_the_end(app: Holdfast) -> None:
    app.grant("acme", 100)
    job = spending(app, 3, 0, 4).using(tenant="acme", credits=20).enqueue()
    assert account(app) == (100, 20, 0)
    assert job.credits_reserved == 20
    app.run_worker(until_idle=True)
    assert job.result(1) == "done"
    assert account(app) == (100, 0, 7)
    assert (job.refresh().credits_spent, job.credits_reserved) == (7, 0)
    spent = [(entry.verb, entry.step, entry.reserved, entry.spent) for entry in reversed(app.ledger("acme"))]
    assert spent[1:] == [
        ("reserve", None, 20, 0),
        ("checkpoint", "s0", -3, 3),
        ("checkpoint", "s2", -4, 4),
        ("complete", None, -13, 0),
    ]


def test_credits_spent_between_steps_come_with_the_next_record_or_the_end(app: Holdfast) -> None:
    app.grant("acme", 100)

    @app.workflow(retry=AGAIN)
    def flow(ctx: Context) -> None:
        ctx.spend(1)
        ctx.step("a", lambda: None)
        ctx.spend(2)
        ctx.sleep("nap", 0)
        ctx.spend(4)
        ctx.wait_for("x")
        ctx.spend(8)
        ctx.gather([])
        ctx.spend(16)
        if ctx.attempt == 1:
            raise OSError

    job = flow.using(tenant="acme").enqueue()
    job.signal("x")
    app.run_worker(until_idle=True)
    assert job.refresh().state == "succeeded"
    assert account(app) == (100, 0, 31)
    assert sum(entry.spent > 0 for entry in app.ledger("acme")) == 5


def test_a_step_is_paid_for_once_whatever_crashes_when(holdfast: TestHoldfast) -> None:
    holdfast.grant("acme", 100)
    job = spending(holdfast, 5, 7, retry=OFTEN, crash_cap=9).using(tenant="acme", credits=3).enqueue()
    for crashing in ("s0", "flow", "s1"):
        holdfast.crash_after(crashing)
    for _ in range(4):
        holdfast.run_until_idle()
        account(holdfast)
        holdfast.advance(minutes=1)
    assert job.result() == "done"
    assert account(holdfast) == (100, 0, 12)


def test_a_body_that_fails_has_spent_nothing(app: Holdfast) -> None:
    app.grant("acme", 100)
    calls: list[int] = []

    @app.workflow(retry=AGAIN)
    def flow(ctx: Context) -> None:
        def body() -> None:
            ctx.spend(5)
            calls.append(1)
            if len(calls) < 4:
                raise OSError

        ctx.step("a", body, retry=Retry.fixed(0, retries=1))

    job = flow.using(tenant="acme").enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, len(calls)) == ("succeeded", 4)
    assert account(app) == (100, 0, 5)


def test_a_job_that_dies_or_is_cancelled_gives_back_what_it_did_not_spend(app: Holdfast) -> None:
    app.grant("acme", 100)

    @app.workflow(retry=ONCE)
    def flow(end: str, ctx: Context) -> None:
        ctx.step("a", ctx.spend, 2)
        if end == "wait":
            ctx.wait_for("never")
        raise OSError

    dead, cancelled, unrun = (flow.using(tenant="acme", credits=10).enqueue(end) for end in ("die", "wait", "wait"))
    unrun.cancel()
    assert account(app) == (100, 20, 0)
    app.run_worker(until_idle=True)
    assert account(app) == (100, 8, 4)
    cancelled.cancel()
    assert account(app) == (100, 0, 4)
    assert dead.refresh().credits_spent == 2


def test_a_redrive_pays_for_new_steps_only(app: Holdfast) -> None:
    app.grant("acme", 100)
    healthy: list[int] = []

    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("a", ctx.spend, 2)
        ctx.step("b", ctx.spend, 3, undo=lambda: None)
        if not healthy:
            raise OSError
        ctx.step("c", ctx.spend, 5)

    job = flow.using(tenant="acme", credits=10).enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, account(app)) == ("dead", (100, 0, 5))
    healthy.append(1)
    job.redrive()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, account(app)) == ("succeeded", (100, 0, 13)), "b was undone, and is done again"


def test_more_than_was_set_aside_is_taken_from_what_is_to_spare(app: Holdfast) -> None:
    app.grant("acme", 20)
    other = spending(app, 0).using(tenant="acme", credits=5, run_after=3600).enqueue()

    @app.workflow(name="dear", retry=ONCE)
    def dear(ctx: Context) -> None:
        ctx.step("a", ctx.spend, 15)

    paid = dear.using(tenant="acme", credits=1).enqueue()
    unpaid = dear.using(tenant="acme", run_after=0.2).enqueue()
    app.run_worker(until_idle=True)
    assert (paid.refresh().state, code(unpaid)) == ("succeeded", "insufficient_credits")
    assert account(app) == (20, 5, 15), "what is set aside for another is not touched"
    assert other.refresh().credits_reserved == 5


@pytest.mark.parametrize("where", ["step", "between", "end", "sleep", "child"])
def test_more_than_the_account_holds_fails_the_attempt_until_there_is_more(
    app: Holdfast, working: Working, until: Until, where: str
) -> None:
    app.grant("acme", 10)

    @app.job(retry=ONCE)
    def child() -> None:
        pass

    @app.workflow(retry=Retry.fixed(0.3, retries=50))
    def flow(ctx: Context) -> str:
        ctx.step("first", ctx.spend, 4)
        match where:
            case "step":
                ctx.step("a", ctx.spend, 7)
            case "between":
                ctx.spend(7)
                ctx.step("a", lambda: None)
            case "end":
                ctx.spend(7)
            case "sleep":
                ctx.spend(7)
                ctx.sleep("a", 0)
            case _:
                ctx.gather([child.using(credits=7).prepare()])
        return "paid"

    job = flow.using(tenant="acme").enqueue()
    with working(app):
        until(lambda: code(job) == "insufficient_credits")
        assert account(app) == (10, 0, 4)
        app.grant("acme", 1)
        assert job.result(10) == "paid"
    assert account(app) == (11, 0, 4 if where == "child" else 11)


def test_not_enough_credits_at_enqueue_is_an_error_and_no_job(app: Holdfast) -> None:
    app.grant("acme", 10)
    flow = spending(app, 1)
    with pytest.raises(InsufficientCredits, match="10 credits to spare, and 11 are needed; nothing was enqueued"):
        flow.using(tenant="acme", credits=11).enqueue()
    three = [flow.using(tenant="acme", credits=4).prepare()] * 3
    with pytest.raises(InsufficientCredits):
        app.enqueue_many(three)
    assert (app.find(), account(app)) == ([], (10, 0, 0))
    app.enqueue_many(three[:2])
    assert account(app) == (10, 8, 0)


def test_a_duplicate_sets_nothing_aside(app: Holdfast) -> None:
    app.grant("acme", 10)
    flow = spending(app, 1).using(tenant="acme", credits=6, key="k")
    assert not flow.enqueue().duplicate
    assert flow.enqueue().duplicate
    assert account(app) == (10, 6, 0)


def test_credits_are_off_without_an_account(app: Holdfast) -> None:
    job = spending(app, 5).using(tenant="free", credits=1000).enqueue()
    nobody = spending(app, 5, name="nobody").using(credits=7).enqueue()
    app.run_worker(until_idle=True)
    assert (job.result(1), nobody.result(1)) == ("done", "done")
    assert (app.account("free"), app.accounts(), app.ledger("free")) == (None, [], [])
    assert (job.refresh().credits_spent, job.credits_reserved) == (5, 0)


def test_an_account_that_is_opened_later_owes_nothing_for_what_was(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("before", ctx.spend, 50)
        ctx.wait_for("go")
        ctx.step("after", ctx.spend, 3)

    job = flow.using(tenant="acme", credits=20).enqueue()
    app.run_worker(until_idle=True)
    app.grant("acme", 10)
    job.signal("go")
    app.run_worker(until_idle=True)
    assert job.refresh().state == "succeeded"
    assert account(app) == (10, 0, 3)


@pytest.mark.parametrize("amount", [-1, 1.5, "2", True, None, 2**63])
def test_credits_are_spent_in_whole_numbers_of_0_or_more(holdfast: TestHoldfast, amount: Any) -> None:
    holdfast.grant("acme", 10)

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("a", ctx.spend, amount)

    job = flow.using(tenant="acme").enqueue()
    holdfast.run_until_idle()
    assert (code(job), names(job)) == ("bad_input", [])
    assert account(holdfast) == (10, 0, 0)
    with pytest.raises(BadInput):
        flow.using(credits=amount if amount is not None else -2)


def test_a_grant_counts_once_and_takes_back_no_more_than_is_to_spare(app: Holdfast) -> None:
    app.grant("acme", 10, key="invoice-1")
    app.grant("acme", 10, key="invoice-1")
    job = spending(app, 0).using(tenant="acme", credits=6).enqueue()
    with pytest.raises(InsufficientCredits, match="does not hold 5 credits to spare"):
        app.grant("acme", -5)
    assert account(app) == (10, 6, 0)
    app.grant("acme", -4)
    assert account(app) == (6, 6, 0)
    job.cancel()
    assert account(app) == (6, 0, 0)


@pytest.mark.parametrize("amount", [True, 1.5, "2", None, 2**63, -(2**63)])
def test_a_grant_is_a_whole_number(app: Holdfast, amount: Any) -> None:
    with pytest.raises(BadInput, match="A grant is a whole number of credits"):
        app.grant("acme", amount)
    assert app.account("acme") is None


@pytest.mark.parametrize("key", ["", 7, "a\x00b", "x" * 256])
def test_the_key_of_a_grant_is_a_short_text(app: Holdfast, key: Any) -> None:
    with pytest.raises(BadInput, match="A key is 1 to 255 printable characters"):
        app.grant("acme", 1, key=key)
    assert app.account("acme") is None


def test_children_are_paid_for_by_their_parents_tenant(app: Holdfast) -> None:
    app.grant("acme", 20)
    app.grant("other", 20)

    @app.workflow(retry=ONCE)
    def child(ctx: Context) -> None:
        ctx.spend(3)

    @app.workflow(retry=ONCE)
    def parent(ctx: Context) -> None:
        ctx.spend(1)
        ctx.gather([child.using(credits=5).prepare()] * 2 + [child.using(tenant="other", credits=5).prepare()])

    job = parent.using(tenant="acme", credits=2).enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "succeeded"
    assert (account(app), account(app, "other")) == ((20, 0, 7), (20, 0, 3))


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "all"])
def test_the_changes_of_an_account_are_listed_up_to_a_whole_number(holdfast: TestHoldfast, limit: Any) -> None:
    holdfast.grant("acme", 5)
    with pytest.raises(BadInput, match="limit is a whole number of 1 or more, not"):
        holdfast.ledger("acme", limit=limit)
    assert len(holdfast.ledger("acme", limit=1)) == 1
