"""A store that is in trouble: what the server says of it, and that asking again is safe."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from holdfast import Holdfast
from tests.server.calling import called, problem
from tests.servers import link, own


@pytest.fixture
def caller_on_postgresql(postgres_url: str) -> Iterator[httpx.Client]:
    app = Holdfast(postgres_url)
    with called(app) as caller:
        yield caller
    app.close()


def test_s3_a_job_that_may_have_been_stored_is_told_as_that_and_asked_for_again() -> None:
    body = {"kind": "resize", "payload": {"photo": 7}, "key": "the lost one"}
    with own() as server, server.database("faults") as url, link(server.port) as line:
        app = Holdfast(url.replace(f":{server.port}", f":{line.port}"))
        with called(app, upkeep=False) as caller:
            assert caller.post("/v1/jobs", json={"kind": "resize"}).status_code == 201
            line.lose_answer_to(b"the lost one", for_good=True)
            answer = caller.post("/v1/jobs", json=body)
            problem(answer, 503, "commit-unknown")
            assert answer.headers["retry-after"] == "1"
            assert "safe to ask again" in answer.json()["detail"]
        app.close()
        app = Holdfast(url)
        with called(app) as caller:
            again = caller.post("/v1/jobs", json=body)
            assert (again.status_code, again.json()["duplicate"]) in ((200, True), (201, False))
            assert app.counts().total == 2
        app.close()


@pytest.mark.parametrize("odd", ["\x00", "a\x00b", "\ufffe", "💥" * 255, "'; --", "%", "\\"])
def test_odd_names_are_no_trouble_to_postgresql(odd: str, caller_on_postgresql: httpx.Client) -> None:
    caller, path = caller_on_postgresql, quote(odd, safe="")
    answers = [caller.get("/v1/jobs", params={name: odd}) for name in ("kind", "queue", "tenant", "error_code", "key")]
    answers += [caller.post(f"/v1/queues/{path}/{verb}") for verb in ("pause", "resume")]
    answers += [caller.post(f"/v1/schedules/{path}/run"), caller.delete(f"/v1/schedules/{path}")]
    answers += [caller.get(f"/v1/credits/{path}"), caller.post(f"/v1/credits/{path}/grant", json={"credits": 1})]
    answers += [caller.post("/v1/dead/redrive", json={name: odd}) for name in ("kind", "queue", "tenant", "error_code")]
    answers += [caller.post("/v1/claims", json={"worker": odd, "queues": [odd], "kinds": [odd]})]
    job = {"kind": odd, "queue": odd, "tenant": odd, "key": odd, "user": odd, "trace_id": odd}
    answers += [caller.post("/v1/jobs", json=job), caller.post("/v1/jobs", json={"kind": "x", "payload": {odd: odd}})]
    assert [answer.text for answer in answers if answer.status_code >= 500] == []


def test_s34_nothing_is_acknowledged_before_it_is_stored(postgres_url: str) -> None:
    app, reader = Holdfast(postgres_url), Holdfast(postgres_url)
    with called(app) as caller:
        for n in range(20):
            id_ = caller.post("/v1/jobs", json={"kind": "resize", "payload": {"n": n}}).json()["id"]
            assert reader.get(id_).payload == {"n": n}
            (job,) = caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]
            assert reader.get(id_).state == "running"
            caller.post(f"/v1/jobs/{id_}/complete", json={"token": job["lease"]["token"], "result": n})
            assert reader.get(id_).result(1) == n
    app.close()
    reader.close()
