"""Who may do what: every route against every kind of credential; and the walls between tenants."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.routing import APIRoute

from holdfast import BadInput, Holdfast
from holdfast.client.tokens import SCOPES, Principal
from holdfast.domain.job import State
from holdfast.server import Limits, asgi, serve
from holdfast.server.api import routers
from tests.server.calling import called, problem
from tests.servers import until

UNKNOWN = "01900000-0000-7000-8000-000000000000"
REFUSALS = {"none": "no-token", "wrong": "bad-token", "expired": "bad-token", "revoked": "bad-token"}


class Row(NamedTuple):
    """What a route takes, and what it answers to whoever may use it."""

    scope: str | None
    """None: anybody."""
    status: int = 200
    body: Any = None
    every: bool = False
    """It concerns every tenant: a token that is bound to one is refused."""
    state: State | None = None
    """It is about one job, which is brought to this state first."""


HELD = {"token": "1.abc"}
MATRIX: dict[tuple[str, str], Row] = {
    ("GET", "/healthz"): Row(None),
    ("GET", "/readyz"): Row(None),
    ("GET", "/metrics"): Row("read", every=True),
    ("POST", "/v1/jobs"): Row("enqueue", 201, {"kind": "x"}),
    ("POST", "/v1/jobs/batch"): Row("enqueue", 201, {"jobs": [{"kind": "x"}]}),
    ("GET", "/v1/jobs"): Row("read"),
    ("GET", "/v1/jobs/{id}"): Row("read", state=State.QUEUED),
    ("GET", "/v1/jobs/{id}/attempts"): Row("read", state=State.QUEUED),
    ("GET", "/v1/jobs/{id}/steps"): Row("read", state=State.QUEUED),
    ("GET", "/v1/jobs/{id}/history"): Row("read", state=State.QUEUED),
    ("GET", "/v1/jobs/{id}/why"): Row("read", state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/cancel"): Row("operate", state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/redrive"): Row("operate", state=State.DEAD),
    ("POST", "/v1/jobs/{id}/signal"): Row("operate", 200, {"name": "go"}, state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/fork"): Row("operate", 201, {"step": "one"}, state=State.DEAD),
    ("POST", "/v1/dead/redrive"): Row("operate", 200, {"kind": "nothing"}),
    ("POST", "/v1/claims"): Row("work", 200, {"worker": "w", "queues": ["nowhere"]}),
    ("POST", "/v1/jobs/{id}/heartbeat"): Row("work", 409, HELD, state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/checkpoint"): Row("work", 409, HELD | {"step": "s"}, state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/complete"): Row("work", 409, HELD, state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/fail"): Row("work", 409, HELD | {"code": "c"}, state=State.QUEUED),
    ("POST", "/v1/jobs/{id}/release"): Row("work", 409, HELD, state=State.QUEUED),
    ("GET", "/v1/queues"): Row("read", every=True),
    ("GET", "/v1/queues/{name:path}"): Row("read", every=True),
    ("POST", "/v1/queues/{name:path}/pause"): Row("operate", every=True),
    ("POST", "/v1/queues/{name:path}/resume"): Row("operate", every=True),
    ("GET", "/v1/limits"): Row("read"),
    ("PUT", "/v1/limits/{queue:path}"): Row("operate", 200, {"limits": [{"concurrency": 1_000}]}, every=True),
    ("DELETE", "/v1/limits/{queue:path}"): Row("operate", 204, every=True),
    ("POST", "/v1/tenants/{tenant:path}/pause"): Row("operate", every=True),
    ("POST", "/v1/tenants/{tenant:path}/resume"): Row("operate", every=True),
    ("POST", "/v1/kinds/{kind:path}/pause"): Row("operate", every=True),
    ("POST", "/v1/kinds/{kind:path}/resume"): Row("operate", every=True),
    ("GET", "/v1/workers"): Row("read", every=True),
    ("GET", "/v1/schedules"): Row("read", every=True),
    ("POST", "/v1/schedules"): Row("operate", 422, {"name": "made", "job": {"kind": "x"}}, every=True),
    ("GET", "/v1/schedules/{name:path}"): Row("read", every=True),
    ("POST", "/v1/schedules/{name:path}/pause"): Row("operate", every=True),
    ("POST", "/v1/schedules/{name:path}/resume"): Row("operate", every=True),
    ("POST", "/v1/schedules/{name:path}/run"): Row("operate", 201, every=True),
    ("DELETE", "/v1/schedules/{name:path}"): Row("operate", 204, every=True),
    ("GET", "/v1/credits"): Row("read", every=True),
    ("GET", "/v1/credits/{tenant:path}"): Row("read"),
    ("GET", "/v1/credits/{tenant:path}/ledger"): Row("read"),
    ("POST", "/v1/credits/{tenant:path}/grant"): Row("operate", 200, {"credits": 1}, every=True),
    ("GET", "/v1/trail"): Row("admin", every=True),
}


class Ground(NamedTuple):
    """A server that asks for tokens, and one token of each kind."""

    app: Holdfast
    caller: httpx.Client
    secrets: dict[str, str | None]

    def call(self, route: tuple[str, str], credential: str, path: str) -> httpx.Response:
        secret = self.secrets[credential]
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return self.caller.request(route[0], path, json=MATRIX[route].body, headers=headers)

    def path(self, route: tuple[str, str]) -> str:
        """Give the path of a request that would go well, and make what it is about."""
        name = "a name/of:all kinds"
        if "/schedules/" in route[1] and not any(each.name == name for each in self.app.schedules.list()):
            job = self.app.prepare("known", {}, tenant="acme")
            self.app.schedules.add(name, job, every=3_600)
        if route[0] == "DELETE" and "/limits/" in route[1]:
            self.app.limits.set(name, concurrency=1_000)
        state = MATRIX[route].state
        id_ = "" if state is None else self.job(state)
        return (
            route[1]
            .replace(":path", "")
            .format(id=id_, name=name, queue=name, kind=name, tenant="paused" if "/tenants/" in route[1] else "acme")
        )

    def job(self, state: State) -> str:
        job = self.app.enqueue("known", {}, tenant="acme", queue="work")
        if state is State.DEAD:
            self.app.run_worker(until_idle=True, queues=["work"])
            assert job.refresh().state == state
        return str(job.id)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    app = Holdfast(f"sqlite:///{tmp_path_factory.mktemp('access')}/jobs.db")

    @app.workflow(permanent=(ValueError,))
    def known(ctx: Any) -> None:
        ctx.step("one", int)
        raise ValueError

    app.grant("acme", 100)
    secrets: dict[str, str | None] = {scope: app.tokens.create(scope, [scope])[0] for scope in SCOPES}
    secrets["none"] = None
    secrets["wrong"] = (secrets["admin"] or "")[:-4] + "AAAA"
    secrets["own"] = app.tokens.create("own", SCOPES, tenant="acme")[0]
    secrets["foreign"] = app.tokens.create("foreign", SCOPES, tenant="other")[0]
    secrets["expired"], expired = app.tokens.create("expired", SCOPES, expires_in=0.001)
    secrets["revoked"], revoked = app.tokens.create("revoked", SCOPES)
    app.tokens.revoke(revoked.id)
    until(lambda: expired.state(app.store.now()) == "expired", "the token expires")
    with called(app, auth=True, any_kind=True) as caller:
        yield Ground(app, caller, secrets)
    app.close()


def routes() -> set[tuple[str, str]]:
    return {
        (method, route.path)
        for router in routers()
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def test_every_route_has_its_row(ground: Ground) -> None:
    assert routes() == set(MATRIX)
    described = asgi(ground.app, dashboard=False).openapi()["paths"]
    told = {(method.upper(), path) for path, methods in described.items() for method in methods}
    rows = {(method, path.replace(":path", "")) for method, path in MATRIX}
    assert told - rows <= {("POST", "/v1/hooks/{name}")}
    assert rows <= told


@pytest.mark.parametrize("credential", [*REFUSALS, *SCOPES, "own", "foreign"])
@pytest.mark.parametrize("route", MATRIX, ids=" ".join)
def test_a_route_lets_in_whom_it_should(route: tuple[str, str], credential: str, ground: Ground) -> None:
    row = MATRIX[route]
    path = ground.path(route)
    answer = ground.call(route, credential, path)
    if row.scope is None:
        assert answer.status_code == row.status
    elif credential in REFUSALS:
        problem(answer, 401, REFUSALS[credential])
        assert answer.headers["www-authenticate"].startswith("Bearer")
    elif credential in SCOPES and not Principal("", "", frozenset({credential}), None).may(row.scope):
        problem(answer, 403, "scope-missing")
    elif credential in ("own", "foreign") and row.every:
        problem(answer, 403, "tenant-bound")
    elif credential == "foreign" and "{" in route[1]:
        assert answer.status_code == 404
    else:
        assert answer.status_code == row.status, answer.text


@pytest.mark.parametrize("route", [route for route, row in MATRIX.items() if row.state], ids=" ".join)
def test_anothers_job_is_as_absent_as_one_that_is_not_there(route: tuple[str, str], ground: Ground) -> None:
    path = ground.path(route)
    id_ = path.split("/")[3]
    before = ground.app.get(id_).record
    foreign = ground.call(route, "foreign", path)
    absent = ground.call(route, "foreign", path.replace(id_, UNKNOWN))
    assert foreign.status_code == absent.status_code
    assert foreign.text.replace(id_, UNKNOWN) == absent.text
    assert ground.app.get(id_).record == before


def test_anothers_account_is_as_absent_as_one_that_is_not_there(ground: Ground) -> None:
    for path in ("/v1/credits/acme", "/v1/credits/acme/ledger"):
        route = ("GET", "/v1/credits/{tenant:path}")
        foreign = ground.call(route, "foreign", path)
        absent = ground.call(route, "foreign", path.replace("acme", "nobody"))
        assert foreign.status_code == absent.status_code == 404
        assert foreign.text.replace("acme", "nobody") == absent.text


def test_a_bound_token_enqueues_and_lists_for_its_tenant_alone(ground: Ground) -> None:
    headers = {"Authorization": f"Bearer {ground.secrets['foreign']}"}
    stored = ground.caller.post("/v1/jobs", json={"kind": "theirs"}, headers=headers).json()
    assert stored["tenant"] == "other"
    for body in ({"kind": "x", "tenant": "acme"}, {"kind": "x", "tenant": ""}):
        problem(ground.caller.post("/v1/jobs", json=body, headers=headers), 403, "foreign-tenant")
    ground.app.enqueue("known", {}, tenant="acme")
    listed = ground.caller.get("/v1/jobs", headers=headers).json()["items"]
    assert listed
    assert {job["tenant"] for job in listed} == {"other"}
    problem(ground.caller.get("/v1/jobs?tenant=acme", headers=headers), 403, "foreign-tenant")
    problem(ground.caller.post("/v1/dead/redrive", json={"tenant": "acme"}, headers=headers), 403, "foreign-tenant")


def test_a_bound_token_redrives_its_tenants_dead_alone(ground: Ground) -> None:
    theirs = ground.job(State.DEAD)
    headers = {"Authorization": f"Bearer {ground.secrets['foreign']}"}
    answer = ground.caller.post("/v1/dead/redrive", json={}, headers=headers)
    assert answer.json() == {"redriven": 0, "more": False}
    assert ground.app.get(theirs).state == "dead"


def test_one_tenants_key_is_not_anothers(ground: Ground) -> None:
    body = {"kind": "x", "key": "the same"}
    ids = set()
    for who in ("own", "foreign"):
        headers = {"Authorization": f"Bearer {ground.secrets[who]}"}
        answer = ground.caller.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 201
        ids.add(answer.json()["id"])
    assert len(ids) == 2


def test_a_cursor_is_good_for_whom_it_was_given(ground: Ground) -> None:
    for _ in range(3):
        ground.app.enqueue("known", {}, tenant="acme")
        ground.app.enqueue("known", {}, tenant="other")
    own = {"Authorization": f"Bearer {ground.secrets['own']}"}
    foreign = {"Authorization": f"Bearer {ground.secrets['foreign']}"}
    cursor = ground.caller.get("/v1/jobs?limit=1", headers=own).json()["next"]
    assert ground.caller.get(f"/v1/jobs?limit=1&cursor={cursor}", headers=own).status_code == 200
    problem(ground.caller.get(f"/v1/jobs?limit=1&cursor={cursor}", headers=foreign), 400, "bad-cursor")


def test_how_many_others_wait_is_not_told_to_a_tenant(ground: Ground) -> None:
    job = ground.app.enqueue("known", {}, tenant="acme", queue="shared")
    ground.app.enqueue("known", {}, tenant="other", queue="shared")
    admin = {"Authorization": f"Bearer {ground.secrets['admin']}"}
    own = {"Authorization": f"Bearer {ground.secrets['own']}"}
    claim = {"worker": "w", "queues": ["shared", "none"], "kinds": ["known"]}
    ground.app.pause("shared")
    ground.caller.post("/v1/claims", json=claim, headers=admin)
    ground.app.resume("shared")
    whole = ground.caller.get(f"/v1/jobs/{job.id}/why", headers=admin).json()
    assert (whole["reason"], whole["details"]["queued"]) == ("waiting", 2)
    walled = ground.caller.get(f"/v1/jobs/{job.id}/why", headers=own).json()
    assert (walled["reason"], walled["details"]) == ("waiting", {})
    assert "2" not in walled["text"]


def test_a_token_is_taken_from_its_header_alone(ground: Ground) -> None:
    secret = ground.secrets["admin"]
    problem(ground.caller.get(f"/v1/jobs?key={secret}"), 401, "no-token")
    problem(ground.caller.get(f"/v1/jobs?access_token={secret}"), 401, "no-token")
    problem(ground.caller.get("/v1/jobs", auth=("admin", secret or "")), 401, "no-token")
    problem(ground.caller.get("/v1/jobs", headers={"Cookie": f"token={secret}"}), 401, "no-token")
    for odd in ("Bearer", f"bearer  {secret}x", "Bearer é", "Bearer hf_x_y", "Bearer " + "x" * 5_000):
        answer = ground.caller.get("/v1/jobs", headers={b"Authorization": odd.encode()})
        assert answer.status_code == 401


def test_a_revoked_token_is_refused_at_once_here(ground: Ground) -> None:
    secret, token = ground.app.tokens.create("short", ["read"])
    headers = {"Authorization": f"Bearer {secret}"}
    assert ground.caller.get("/v1/jobs", headers=headers).status_code == 200
    ground.app.tokens.revoke(token.id)
    problem(ground.caller.get("/v1/jobs", headers=headers), 401, "bad-token")


def test_what_operators_do_is_written_down(ground: Ground) -> None:
    secret, token = ground.app.tokens.create("ada", ["operate"], tenant="acme")
    headers = {"Authorization": f"Bearer {secret}"}
    id_ = ground.job(State.QUEUED)
    ground.caller.get(f"/v1/jobs/{id_}", headers=headers)
    ground.caller.post(f"/v1/jobs/{id_}/cancel", headers=headers)
    admin = {"Authorization": f"Bearer {ground.secrets['admin']}"}
    (deed,) = ground.caller.get("/v1/trail?limit=1", headers=admin).json()["items"]
    assert (deed["who"], deed["what"], deed["target"], deed["tenant"]) == (
        f"ada ({token.id})",
        "job.cancel",
        id_,
        "acme",
    )
    assert deed["detail"] == {"state": "cancelled"}


@pytest.mark.parametrize(
    "route", [each for each, row in MATRIX.items() if row.scope not in (None, "read")], ids=" ".join
)
def test_a_server_that_only_shows_changes_nothing(route: tuple[str, str], ground: Ground) -> None:
    if route == ("GET", "/v1/trail"):
        return
    path = ground.path(route)
    counts = ground.app.counts()
    with called(ground.app, read_only=True) as caller:
        problem(caller.request(route[0], path, json=MATRIX[route].body), 403, "read-only")
        assert caller.get("/v1/jobs").status_code == 200
    assert ground.app.counts() == counts


def test_without_tokens_only_this_machine_is_served(app: Holdfast) -> None:
    with pytest.raises(BadInput, match="listens on this machine alone"):
        serve(app, host="0.0.0.0", port=0, auth=False)
    for host in ("0.0.0.0", "127.0.0.1"):
        with pytest.raises(BadInput, match="There is no token yet"):
            serve(app, host=host, port=0, auth=True)


def test_too_many_requests_of_one_token_are_held_back(app: Holdfast) -> None:
    busy, _ = app.tokens.create("busy", ["read"])
    calm, _ = app.tokens.create("calm", ["read"])
    with called(app, auth=True, limits=Limits(rate=0.01, burst=5)) as caller:
        ask: Callable[[str], httpx.Response] = lambda secret: caller.get(  # noqa: E731
            "/v1/jobs", headers={"Authorization": f"Bearer {secret}"}
        )
        assert [ask(busy).status_code for _ in range(6)] == [200] * 5 + [429]
        assert int(ask(busy).headers["retry-after"]) > 1
        assert ask(calm).status_code == 200
        problem(ask(busy), 429, "too-many-requests")
        assert [ask("hf_wrong").status_code for _ in range(6)] == [401] * 5 + [429]
        assert caller.get("/healthz").status_code == 200
