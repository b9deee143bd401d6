"""Flow control over HTTP: rules are set, shown and removed; tenants and kinds are paused; walls stand."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.client import governed
from holdfast.port.store import Capabilities
from holdfast.stores.memory import MemoryStore
from tests.server.calling import called, problem


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Holdfast]:
    match request.param:
        case "postgres":
            url = str(request.getfixturevalue("postgres_url"))
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case _:
            url = "memory://"
    with closing(Holdfast(url)) as made:
        yield made


def enqueue(caller: httpx.Client, count: int = 1, **body: Any) -> None:
    jobs = [{"kind": "send", "queue": "mailer", **body}] * count
    assert caller.post("/v1/jobs/batch", json={"jobs": jobs}).status_code == 201


def claim(caller: httpx.Client, limit: int = 100) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.post("/v1/claims", json={"worker": "w", "limit": limit}).json()["jobs"]
    return found


def deeds(app: Holdfast) -> list[tuple[str, str]]:
    return [(deed.what, deed.target) for deed in app.trail.list()]


def test_a_rule_is_set_shown_with_what_is_in_use_and_removed(caller: httpx.Client, app: Holdfast) -> None:
    body = {"limits": [{"concurrency": 2, "per": "tenant"}, {"rate": "10/h", "burst": 5}], "aging": 600}
    made = caller.put("/v1/limits/mailer", json=body)
    assert made.status_code == 200, made.text
    enqueue(caller, 3, tenant="acme")
    enqueue(caller, 1, tenant="globex")
    assert len(claim(caller)) == 3
    (item,) = caller.get("/v1/limits").json()["items"]
    assert (item["queue"], item["order"], item["weights"], item["aging"]) == ("mailer", "priority", {}, 600)
    rate, tenants = item["limits"]
    assert (rate["rate"], rate["burst"], rate["capacity"], rate["full_subjects"]) == ("10/h", 5, 5, 0)
    assert [(use["tokens"], use["used"], use["full"]) for use in rate["uses"]] == [(2, 3, False)]
    assert (tenants["concurrency"], tenants["per"], tenants["full_subjects"]) == (2, "tenant", 1)
    uses = [(use["tenant"], use["running"], use["full"], use["opens_at"]) for use in tenants["uses"]]
    assert uses[0] == ("acme", 2, True, None)
    assert uses[1][:3] == ("globex", 1, False)
    assert caller.delete("/v1/limits/mailer").status_code == 204
    assert caller.get("/v1/limits").json()["items"] == []
    problem(caller.delete("/v1/limits/mailer"), 404, "limit-not-found")
    assert deeds(app) == [("limits.remove", "mailer"), ("limits.set", "mailer")]
    assert app.trail.list()[1].detail == body


def test_a_rule_takes_the_place_of_the_one_before_it(caller: httpx.Client, app: Holdfast) -> None:
    app.limits.set("mailer", concurrency=5)
    app.limits.order("mailer", order="fair", weights={"acme": 3})
    for _ in range(2):
        answer = caller.put("/v1/limits/mailer", json={"limits": [{"rate": "1/s"}]})
        assert (answer.json()["order"], answer.json()["weights"]) == ("priority", {})
        assert [limit["rate"] for limit in answer.json()["limits"]] == ["1/s"]
    assert [(limit.rate, limit.concurrency) for limit in app.limits()] == [("1/s", None)]
    assert app.limits.queues() == []


def test_the_shares_of_a_fair_queue_are_told(caller: httpx.Client) -> None:
    body = {"order": "fair", "weights": {"acme": 3}}
    assert caller.put("/v1/limits/mail%2Finbox", json=body).json()["shares"] == []
    for tenant in ("acme", "globex"):
        enqueue(caller, 6, tenant=tenant, queue="mail/inbox")
    assert len(claim(caller, 8)) == 8
    (item,) = caller.get("/v1/limits", params={"queue": "mail/inbox"}).json()["items"]
    assert item["shares"] == [
        {"tenant": "acme", "weight": 3, "running": 6},
        {"tenant": "globex", "weight": 1, "running": 2},
    ]
    assert caller.get("/v1/limits?queue=other").json()["items"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"limits": [{}]},
        {"limits": [{"rate": "often"}]},
        {"limits": [{"concurrency": 1}, {"concurrency": 2}]},
        {"limits": [{"rate": "1/s", "full": "drop"}]},
        {"limits": [{"burst": 3, "concurrency": 1}]},
        {"weights": {"acme": 3}},
        {"aging": 0},
    ],
)
@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_a_rule_that_makes_no_sense_is_refused_and_changes_nothing(
    wrong: dict[str, Any], caller: httpx.Client, app: Holdfast
) -> None:
    app.limits.set("mailer", concurrency=5)
    problem(caller.put("/v1/limits/mailer", json=wrong), 422, "bad-input")
    assert [limit.concurrency for limit in app.limits()] == [5]
    assert deeds(app) == []


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_what_a_rule_does_not_have_is_refused(caller: httpx.Client, app: Holdfast) -> None:
    asked: list[Any] = [{"order": "random"}, {"limits": [{"concurrency": 0}]}, {"limit": 1}, {"weights": {"a": 0}}, []]
    for wrong in asked:
        problem(caller.put("/v1/limits/mailer", json=wrong), 422, "bad-request")
    problem(caller.put("/v1/limits/*", json={"order": "fair"}), 422, "bad-input")
    assert (app.limits(), deeds(app)) == ([], [])


def test_tenants_and_kinds_are_paused_and_resumed(caller: httpx.Client, app: Holdfast) -> None:
    enqueue(caller, tenant="acme/eu")
    enqueue(caller, kind="read")
    assert caller.post("/v1/tenants/acme/eu/pause").json() == {"name": "acme/eu", "paused": True}
    assert caller.post("/v1/kinds/read/pause").json() == {"name": "read", "paused": True}
    assert claim(caller) == []
    paused = caller.get("/v1/limits").json()["paused"]
    assert paused == {"queues": [], "tenants": ["acme/eu"], "kinds": ["read"]}
    assert caller.post("/v1/tenants/acme%2Feu/resume").json() == {"name": "acme/eu", "paused": False}
    assert caller.post("/v1/kinds/read/resume").json() == {"name": "read", "paused": False}
    assert len(claim(caller)) == 2
    assert deeds(app) == [
        ("kind.resume", "read"),
        ("tenant.resume", "acme/eu"),
        ("kind.pause", "read"),
        ("tenant.pause", "acme/eu"),
    ]
    problem(caller.post("/v1/tenants/%07/pause"), 422, "bad-input")


def test_a_bound_token_is_told_of_its_own_tenant_alone(caller: httpx.Client, app: Holdfast) -> None:
    app.limits.set("mailer", concurrency=9, per="tenant")
    app.limits.set("mailer", concurrency=9)
    app.limits.set("globex only", rate="1/h", per="tenant")
    app.limits.order("mailer", order="fair", weights={"globex": 7, "acme": 2})
    app.limits.order("globex fair", order="fair", weights={"globex": 7})
    for tenant, queue in (
        ("acme", "mailer"),
        ("globex", "mailer"),
        ("globex", "globex only"),
        ("globex", "globex fair"),
    ):
        enqueue(caller, tenant=tenant, queue=queue)
    assert len(claim(caller)) == 4
    for what in ({"tenant": "globex"}, {"tenant": "acme"}, {"kind": "globex kind"}, {"queue": "globex queue"}):
        app.pause(**what)
    secret, _ = app.tokens.create("own", ["read"], tenant="acme")
    with called(app, secret, auth=True) as bound:
        answer = bound.get("/v1/limits")
    assert "globex" not in answer.text
    (item,) = answer.json()["items"]
    assert (item["queue"], item["weights"]) == ("mailer", {"acme": 2})
    assert item["shares"] == [{"tenant": "acme", "weight": 2, "running": 1}]
    (limit,) = item["limits"]
    assert [(use["tenant"], use["running"]) for use in limit["uses"]] == [("acme", 1)]
    assert (limit["per"], limit["full_subjects"], limit["left_out"]) == ("tenant", 0, 0)
    assert answer.json()["paused"] == {"queues": [], "tenants": ["acme"], "kinds": []}


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_of_many_tenants_the_fullest_are_told_and_the_others_counted(caller: httpx.Client, app: Holdfast) -> None:
    app.limits.set("mailer", concurrency=2, per="tenant")
    app.limits.order("mailer", order="fair")
    jobs = [{"kind": "send", "queue": "mailer", "tenant": f"t{number:03}"} for number in range(governed.MOST + 30)]
    caller.post("/v1/jobs/batch", json={"jobs": [*jobs, jobs[-1], jobs[-2]]})
    assert len(claim(caller)) == governed.MOST + 32
    (item,) = caller.get("/v1/limits").json()["items"]
    (limit,) = item["limits"]
    assert (len(limit["uses"]), limit["left_out"], limit["full_subjects"]) == (governed.MOST, 30, 2)
    assert [use["tenant"] for use in limit["uses"][:3]] == ["t078", "t079", "t000"]
    assert (len(item["shares"]), item["left_out"]) == (governed.MOST, 30)


class Unable(MemoryStore):
    """A store without flow control."""

    capabilities = Capabilities(durable=False, shared=False)


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_a_store_without_flow_control_refuses_in_one_sentence(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_opened", Unable())
    with called(app) as caller:
        asked = [
            caller.put("/v1/limits/mailer", json={"limits": [{"concurrency": 1}]}),
            caller.delete("/v1/limits/mailer"),
            *(caller.post(f"/v1/{what}/x/{verb}") for what in ("tenants", "kinds") for verb in ("pause", "resume")),
        ]
        for answer in asked:
            assert problem(answer, 422, "bad-input")["detail"].startswith("This store has no flow control")
        caller.post("/v1/queues/mail/pause")
        shown = caller.get("/v1/limits").json()
    assert shown == {"items": [], "paused": {"queues": ["mail"], "tenants": [], "kinds": []}}
    assert deeds(app) == [("queue.pause", "mail")]
