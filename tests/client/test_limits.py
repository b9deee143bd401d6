"""Flow control as an application asks for it: declared in code, changed at run time, and explained."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.client.limits import Pauses, Share, store_declared
from holdfast.domain.errors import BadInput
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Capabilities, Claim, WorkerRecord
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock

Claimed = Callable[[int], list[Any]]


@pytest.fixture
def claim(app: Holdfast) -> Claimed:
    numbers = iter(range(10_000))
    return lambda most: app.store.claim(Claim("w", f"l{next(numbers)}", MINUTE, most))


def serve(app: Holdfast) -> None:
    """Let a worker report itself."""
    now = app.store.now()
    app.store.enlist(WorkerRecord("w", "host", 1, None, tuple(app.registry), 4, now, now, now + 10**12, 1))


def test_rules_declared_in_code_hold_once_a_worker_has_stored_them(app: Holdfast, claim: Claimed) -> None:
    @app.job
    def mail(n: int) -> None: ...

    app.queue("default", order="fair", weights={"acme": 2})
    app.limit("default", concurrency=4)
    for tenant in ("acme", "bob", "eve"):
        app.enqueue_many([mail.using(tenant=tenant).prepare(n) for n in range(3)])
    assert app.limits() == []
    assert store_declared(app.store, app.limits.declared) == 1
    assert store_declared(app.store, app.limits.declared) == 0
    assert [job.tenant for job in claim(9)] == ["acme", "acme", "bob", "eve"]
    [limit] = app.limits()
    assert (limit.queue, limit.concurrency, limit.per, limit.uses[0].running) == ("default", 4, "queue", 4)
    assert app.limits.shares("default") == [Share("acme", 2, 2), Share("bob", 1, 1), Share("eve", 1, 1)]
    [ordered] = app.limits.queues()
    assert (ordered.order, ordered.weights, ordered.aging) == ("fair", {"acme": 2}, None)


def test_what_is_changed_at_run_time_stays_until_code_declares_something_else(app: Holdfast) -> None:
    app.limit("mail", rate="100/min", burst=20, per="tenant")
    store_declared(app.store, app.limits.declared)
    app.limits.set("mail", rate="10/min", per="tenant")
    assert store_declared(app.store, app.limits.declared) == 0
    assert [limit.rate for limit in app.limits()] == ["10/min"]
    assert app.unlimit("mail")
    assert not app.unlimit("mail")
    assert store_declared(app.store, app.limits.declared) == 0
    assert app.limits() == []
    app.limit("mail", concurrency=5)
    assert store_declared(app.store, app.limits.declared) == 1
    assert [(limit.rate, limit.concurrency) for limit in app.limits()] == [(None, 5), ("100/min", None)]


def test_limits_can_be_taken_away_one_by_one(app: Holdfast) -> None:
    app.limits.set("mail", rate="5/s", concurrency=2)
    app.limits.set("mail", concurrency=1, per="key")
    assert app.unlimit("mail", what="rate")
    assert [limit.per for limit in app.limits()] == ["key", "queue"]
    assert app.unlimit("mail", per="key")
    assert not app.unlimit("mail", per="tenant")
    assert [limit.concurrency for limit in app.limits()] == [2]
    app.limits.order("mail", order="fair", aging=timedelta(minutes=5))
    assert app.limits.queues()[0].aging == timedelta(minutes=5)
    app.limits.order("mail")
    assert app.limits.queues() == []


def test_what_cannot_be_kept_is_refused_and_changes_nothing(app: Holdfast) -> None:
    app.queue("fair", order="fair")
    app.limits.order("fair", order="fair")
    for wrong in (
        lambda: app.limits.order("*", order="fair"),
        lambda: app.limits.set("*", concurrency=1, full="drop"),
        lambda: app.limit("q", rate="fast"),
        lambda: app.limit("", concurrency=1),
        lambda: app.limits.remove("q", per="user"),
        lambda: app.queue("q", order="priority", weights={"a": 2}),
        lambda: app.pause("q", tenant="a"),
        lambda: app.pause(tenant="a", kind="b"),
        lambda: app.resume(tenant=""),
    ):
        with pytest.raises(BadInput):
            wrong()
    assert app.limits() == []
    assert list(app.limits.declared) == ["fair"]


def test_a_paused_tenant_or_kind_is_held_back_and_explained(app: Holdfast, claim: Claimed) -> None:
    @app.job
    def add(n: int) -> None: ...

    @app.job
    def mail(n: int) -> None: ...

    acme, kind, free = add.using(tenant="acme").enqueue(1), mail.enqueue(2), add.enqueue(3)
    app.pause(tenant="acme")
    app.pause(tenant="acme")
    app.pause(kind="mail")
    assert app.pauses() == Pauses(frozenset(), frozenset({"acme"}), frozenset({"mail"}))
    assert [job.id for job in claim(9)] == [str(free.id)]
    assert app.explain(acme.id).text == "The tenant 'acme' is paused; resume it to let its jobs run."
    assert app.explain(kind.id).details == {"kind": "mail"}
    app.resume(tenant="acme")
    app.resume(kind="mail")
    assert len(claim(9)) == 2
    assert app.pauses() == Pauses(frozenset(), frozenset(), frozenset())


def test_explain_names_the_limit_that_holds_a_job_back(app: Holdfast, claim: Claimed, clock: ManualClock) -> None:
    @app.job
    def mail(n: int) -> None: ...

    serve(app)
    app.limits.set("default", concurrency=1, per="key")
    app.limits.set("*", rate="1/min", per="tenant")
    first = mail.using(tenant="acme", group="customer-7").enqueue(1)
    second = mail.using(tenant="acme", group="customer-7").enqueue(2)
    assert app.explain(first.id).reason == "waiting"
    assert [job.id for job in claim(9)] == [str(first.id)]
    third = mail.using(tenant="acme").enqueue(3)
    told = app.explain(second.id)
    assert told.reason == "limit"
    assert told.text == (
        "The limit of the queue 'default' (1 at once per key) holds it back: 1 of key 'customer-7' is running; "
        "it may start when it ends."
    )
    clock.advance(seconds=15)
    told = app.explain(third.id)
    assert told.text.startswith(
        "The limit of all queues (1/min per tenant) holds it back: for tenant 'acme' the next may start in 45.0 seconds"
    )
    assert (told.details["rate"], told.details["tenant"]) == ("1/min", "acme")
    uses = {
        (limit.queue, use.tenant, use.key): (use.running, use.tokens) for limit in app.limits() for use in limit.uses
    }
    assert uses == {("*", "acme", None): (None, 0), ("default", "acme", "customer-7"): (1, None)}


def test_a_group_is_kept_with_the_job(app: Holdfast) -> None:
    @app.job
    def mail(n: int) -> None: ...

    job = mail.using(group="customer-7").enqueue(1)
    assert job.record.flow is not None
    assert job.record.flow.group == "customer-7"
    with pytest.raises(BadInput, match="A group is"):
        mail.using(group="two\nlines")


def test_limits_have_asynchronous_twins(app: Holdfast) -> None:
    async def ask() -> None:
        await app.limits.aset("mail", concurrency=1)
        assert len(await app.limits.alist()) == 1
        await app.apause(tenant="acme")
        assert (await app.apauses()).tenants == {"acme"}
        await app.aresume(tenant="acme")
        assert await app.aunlimit("mail")

    asyncio.run(ask())


class Unable(MemoryStore):
    """A store without flow control."""

    capabilities = Capabilities(durable=False, shared=False)


def test_a_store_without_flow_control_refuses_rules_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast("memory://")
    monkeypatch.setattr(app, "_opened", Unable())
    app.limit("mail", concurrency=1)
    for wrong in (
        app.service,
        lambda: app.pause(tenant="acme"),
        lambda: app.limits.set("mail", concurrency=1),
        lambda: app.limits.order("mail", order="fair"),
    ):
        with pytest.raises(BadInput, match="This store has no flow control"):
            wrong()
    assert app.limits() == []


def test_a_pause_is_for_queues_by_their_names_and_not_for_all() -> None:
    app = Holdfast("memory://")
    app.pause("mail")
    with pytest.raises(
        BadInput, match=r"'\*' stands for all queues, .*; pause each by its name, or stop the workers\."
    ):
        app.pause("*")
    with pytest.raises(BadInput, match=r"'\*' stands for all queues, .*; resume each by its name \(paused: mail\)\."):
        app.resume("*")
    assert app.paused() == {"mail"}
    app.store.pause("*")  # as could be done before
    app.resume("*")
    assert app.paused() == {"mail"}
