"""Workers of one tenant: a token with the scope `work` that is bound to a tenant works off that tenant's jobs alone."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from holdfast import Holdfast
from holdfast.port.store import Claim
from holdfast.remote import Client
from tests.server.loopback import serving
from tests.servers import until

TENANTS = ("ada", "bob")
UNKNOWN = "01900000-0000-7000-8000-000000000000"
SETTLEMENTS: list[tuple[str, dict[str, Any]]] = [
    ("heartbeat", {}),
    ("checkpoint", {"step": "fetch"}),
    ("complete", {"result": 1}),
    ("fail", {"code": "timeout"}),
    ("release", {}),
]


class Place(NamedTuple):
    """A server, and a caller for each tenant and for the one who may work for all."""

    app: Holdfast
    url: str
    secrets: dict[str, str]
    callers: dict[str, httpx.Client]

    def claim(self, who: str, **body: Any) -> list[dict[str, Any]]:
        answer = self.callers[who].post("/v1/claims", json={"worker": f"worker of {who}", **body})
        assert answer.status_code == 200, answer.text
        jobs: list[dict[str, Any]] = answer.json()["jobs"]
        return jobs

    def say(self, who: str, job: dict[str, Any], verb: str, **body: Any) -> httpx.Response:
        told = {"token": job["lease"]["token"], **body}
        return self.callers[who].post(f"/v1/jobs/{job['id']}/{verb}", json=told)

    def enqueue(self, tenant: str, **options: Any) -> str:
        answer = self.callers["all"].post("/v1/jobs", json={"kind": "resize", "tenant": tenant, **options})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


@contextmanager
def served(url: str) -> Iterator[Place]:
    with ExitStack() as leaving:
        app = leaving.enter_context(closing(Holdfast(url)))
        secrets = {tenant: app.tokens.create(tenant, ["work"], tenant=tenant)[0] for tenant in TENANTS}
        secrets["all"] = app.tokens.create("all", ["work", "enqueue"])[0]
        address = leaving.enter_context(serving(app, auth=True, any_kind=True))
        callers = {
            who: leaving.enter_context(
                httpx.Client(base_url=address, headers={"Authorization": f"Bearer {secret}"}, timeout=40)
            )
            for who, secret in secrets.items()
        }
        yield Place(app, address, secrets, callers)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with served(f"sqlite:///{tmp_path}/jobs.db") as place:
        yield place


def test_a_worker_of_a_tenant_is_given_its_jobs_alone(place: Place) -> None:
    theirs = [place.enqueue("bob", priority=9) for _ in range(3)]
    ours = [place.enqueue("ada") for _ in range(2)]
    nobodys = place.enqueue("")
    before = [place.app.get(id_).record for id_ in (*theirs, nobodys)]
    claimed = place.claim("ada", limit=10)
    assert [(job["id"], job["tenant"]) for job in claimed] == [(id_, "ada") for id_ in ours]
    assert place.claim("ada", limit=10) == []
    assert [place.app.get(id_).record for id_ in (*theirs, nobodys)] == before
    assert [job["id"] for job in place.claim("bob", limit=2)] == theirs[:2]
    assert {job["id"] for job in place.claim("all", limit=10)} == {theirs[2], nobodys}


def test_a_worker_of_a_tenant_settles_its_jobs(place: Place) -> None:
    place.enqueue("ada")
    (job,) = place.claim("ada")
    assert place.say("ada", job, "heartbeat", progress=0.5).status_code == 200
    assert place.say("ada", job, "checkpoint", step="fetch", result=7).json()["state"] == "running"
    assert place.say("ada", job, "release").json()["state"] == "retrying"
    (again,) = place.claim("ada")
    assert again["steps"] == [{"name": "fetch", "result": 7}]
    assert place.say("ada", again, "complete", result=1).json()["state"] == "succeeded"


@pytest.mark.parametrize(("verb", "body"), SETTLEMENTS)
def test_anothers_running_job_is_as_absent_as_one_that_is_not_there(
    verb: str, body: dict[str, Any], place: Place
) -> None:
    place.enqueue("bob")
    (job,) = place.claim("bob")
    before = place.app.get(job["id"]).record
    foreign = place.say("ada", job, verb, **body)
    absent = place.say("ada", job | {"id": UNKNOWN}, verb, **body)
    assert (foreign.status_code, foreign.headers["content-type"]) == (404, "application/problem+json")
    assert foreign.status_code == absent.status_code
    assert foreign.text.replace(job["id"], UNKNOWN) == absent.text
    assert place.app.get(job["id"]).record == before
    assert place.say("bob", job, verb, **body).status_code == 200


def test_who_waits_for_one_tenants_work_is_not_served_anothers(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = {who: _waiting(pool, place, who) for who in TENANTS}
        theirs = place.enqueue("bob")
        (job,) = waiting["bob"].result(20)
        assert job["id"] == theirs
        assert not waiting["ada"].done()
        ours = place.enqueue("ada")
        (job,) = waiting["ada"].result(20)
        assert job["id"] == ours


def test_nobodys_ring_is_lost_to_a_worker_of_another_tenant(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = [_waiting(pool, place, who) for who in ("ada", "ada", "bob", "all")]
        ids = {place.enqueue("bob") for _ in range(2)}
        found = [each.result(20) for each in waiting[2:]]
        assert {job["id"] for jobs in found for job in jobs} == ids
        place.enqueue("ada")
        place.enqueue("ada")
        assert [len(each.result(20)) for each in waiting[:2]] == [1, 1]


def _waiting(pool: ThreadPoolExecutor, place: Place, who: str) -> "Future[list[dict[str, Any]]]":
    """Begin to wait for work, and be known to the server."""
    name = f"{who} {time.monotonic_ns()}"
    begun = pool.submit(place.claim, who, wait=30, worker=name)
    until(lambda: any(worker.id == name for worker in place.app.store.workers()), "the worker is known")
    return begun


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "dynamodb", "contract"])
def test_who_waits_behind_anothers_due_jobs_does_not_look_all_the_time(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    with served(url) as place:
        looks = _counted(place.app, monkeypatch)
        for _ in range(20):
            place.enqueue("bob")
        began = time.monotonic()
        assert place.claim("ada", wait=3) == []
        took = time.monotonic() - began
        assert took >= 3
        assert 1 <= len(looks) <= 5 * took, f"{len(looks)} looks in {took:.1f} s"
        assert {want.tenant for want in looks} == {"ada"}
        place.enqueue("ada")
        assert len(place.claim("ada", wait=20)) == 1


def _counted(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """Note every claim that the store is asked for."""
    looks: list[Claim] = []
    claim: Callable[[Claim], Any] = app.store.claim

    def noted(want: Claim) -> Any:
        looks.append(want)
        return claim(want)

    monkeypatch.setattr(app.store, "claim", noted)
    return looks


def test_a_remote_worker_with_a_tenants_token_works_off_that_tenants_jobs(place: Place) -> None:
    theirs = [place.enqueue("bob") for _ in range(5)]
    ours = [place.enqueue("ada") for _ in range(20)]
    with Client(place.url, token=place.secrets["ada"]) as client:
        client.handles("resize")(lambda task: task.attempt)
        client.work(until_idle=True, concurrency=4)
    assert {place.app.get(id_).state for id_ in ours} == {"succeeded"}
    assert {place.app.get(id_).state for id_ in theirs} == {"queued"}
