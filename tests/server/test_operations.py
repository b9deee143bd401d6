"""What operators do over HTTP: jobs, dead ones by a filter, queues, schedules, credits; and the trail of it."""

import threading
import time
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.server import asgi
from tests.server.calling import called, problem
from tests.servers import free_port, until

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def enqueue(caller: httpx.Client, **body: Any) -> str:
    return str(caller.post("/v1/jobs", json={"kind": "resize", **body}).json()["id"])


def kill(caller: httpx.Client, code: str = "broken", **body: Any) -> str:
    """Enqueue a job, and let it die."""
    id_ = enqueue(caller, queue=f"for {code}", **body)
    (job,) = caller.post("/v1/claims", json={"worker": "w", "queues": [f"for {code}"]}).json()["jobs"]
    held = {"token": job["lease"]["token"], "code": code, "retryable": False}
    assert caller.post(f"/v1/jobs/{id_}/fail", json=held).json()["state"] == "dead"
    return id_


def deeds(caller: httpx.Client) -> list[tuple[str, str]]:
    return [(each["what"], each["target"]) for each in caller.get("/v1/trail").json()["items"]]


def test_a_job_is_cancelled_once(caller: httpx.Client) -> None:
    id_ = enqueue(caller)
    for _ in range(2):
        told = caller.post(f"/v1/jobs/{id_}/cancel").json()
        assert (told["state"], told["version"]) == ("cancelled", 2)


def test_a_running_job_is_asked_to_stop(caller: httpx.Client) -> None:
    id_ = enqueue(caller)
    caller.post("/v1/claims", json={"worker": "w"})
    told = caller.post(f"/v1/jobs/{id_}/cancel").json()
    assert (told["state"], told["cancel_requested"]) == ("running", True)


def test_a_dead_job_is_redriven_as_a_new_generation(caller: httpx.Client) -> None:
    id_ = kill(caller)
    for _ in range(2):
        told = caller.post(f"/v1/jobs/{id_}/redrive").json()
        assert (told["state"], told["generation"], told["attempt"]) == ("queued", 2, 0)
    assert deeds(caller)[0] == ("job.redrive", id_)


def test_a_job_that_succeeded_is_not_redriven(caller: httpx.Client) -> None:
    id_ = enqueue(caller)
    (job,) = caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]
    caller.post(f"/v1/jobs/{id_}/complete", json={"token": job["lease"]["token"]})
    said = problem(caller.post(f"/v1/jobs/{id_}/redrive"), 409, "illegal-move")
    assert said["reason"] == "no-op-terminal"


def test_dead_jobs_are_redriven_by_a_filter(caller: httpx.Client, app: Holdfast) -> None:
    slow, broken, other = kill(caller, "timeout"), kill(caller, "broken"), kill(caller, "timeout", kind="other")
    answer = caller.post("/v1/dead/redrive", json={"kind": "resize", "error_code": "timeout"})
    assert answer.json() == {"redriven": 1, "more": False}
    assert [app.get(id_).state for id_ in (slow, broken, other)] == ["queued", "dead", "dead"]
    assert caller.post("/v1/dead/redrive", json={"limit": 1}).json() == {"redriven": 1, "more": True}
    assert caller.post("/v1/dead/redrive", json={}).json() == {"redriven": 1, "more": False}
    assert [what for what, _ in deeds(caller)] == ["dead.redrive"] * 3


def test_dead_jobs_are_redriven_no_faster_than_asked(caller: httpx.Client) -> None:
    for _ in range(5):
        kill(caller)
    began = time.monotonic()
    answer = caller.post("/v1/dead/redrive", json={"per_second": 2})
    assert answer.json() == {"redriven": 5, "more": False}
    assert time.monotonic() - began >= 2


def test_a_signal_reaches_a_job(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    assert caller.post(f"/v1/jobs/{id_}/signal", json={"name": "go", "payload": {"n": 1}}).status_code == 200
    ((_, name, payload, _),) = app.signals(id_)
    assert (name, payload) == ("go", '{"n":1}')
    problem(caller.post(f"/v1/jobs/{id_}/signal", json={"name": "$own"}), 422, "bad-input")
    caller.post(f"/v1/jobs/{id_}/cancel")
    problem(caller.post(f"/v1/jobs/{id_}/signal", json={"name": "go"}), 409, "illegal-move")


def test_a_job_is_forked_from_a_step(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    (job,) = caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]
    for step in ("one", "two"):
        held = {"token": job["lease"]["token"], "step": step, "result": step}
        caller.post(f"/v1/jobs/{id_}/checkpoint", json=held)
    answer = caller.post(f"/v1/jobs/{id_}/fork", json={"step": "two"})
    assert answer.status_code == 201
    assert [step.name for step in app.steps(answer.json()["id"])] == ["one"]
    problem(caller.post(f"/v1/jobs/{id_}/fork", json={"step": "seven"}), 422, "bad-input")


def test_queues_are_counted_paused_and_resumed(caller: httpx.Client) -> None:
    enqueue(caller, queue="mail/inbox")
    assert caller.post("/v1/queues/mail/inbox/pause").json() == {"name": "mail/inbox", "paused": True}
    assert caller.post("/v1/claims", json={"worker": "w"}).json() == {"jobs": []}
    (queue,) = caller.get("/v1/queues").json()["items"]
    assert (queue["name"], queue["paused"], queue["counts"]["queued"]) == ("mail/inbox", True, 1)
    assert caller.get("/v1/queues/mail/inbox").json() == queue
    unused = caller.get("/v1/queues/unused").json()
    assert (unused["name"], unused["paused"], sum(unused["counts"].values())) == ("unused", False, 0)
    caller.post("/v1/queues/mail%2Finbox/resume")
    assert len(caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]) == 1
    assert deeds(caller) == [("queue.resume", "mail/inbox"), ("queue.pause", "mail/inbox")]


def test_all_queues_at_once_are_neither_paused_nor_resumed(caller: httpx.Client) -> None:
    for verb in ("pause", "resume"):
        refused = caller.post(f"/v1/queues/*/{verb}")
        assert (refused.status_code, refused.json()["detail"][:29]) == (422, "'*' stands for all queues, an")
    assert caller.get("/v1/queues").json()["items"] == []
    assert deeds(caller) == []


def test_a_schedule_is_added_paused_run_and_removed(caller: httpx.Client, app: Holdfast) -> None:
    body = {"name": "nightly", "job": {"kind": "cleanup", "queue": "night"}, "cron": "0 3 * * *", "tz": "Europe/Prague"}
    added = caller.post("/v1/schedules", json=body)
    assert added.status_code == 201
    assert (added.json()["kind"], added.json()["paused"]) == ("cleanup", False)
    problem(caller.post("/v1/schedules", json=body), 422, "bad-input")
    assert caller.post("/v1/schedules/nightly/pause").json()["paused"]
    assert not caller.post("/v1/schedules/nightly/resume").json()["paused"]
    assert caller.get("/v1/schedules/nightly").json() == added.json()
    run = caller.post("/v1/schedules/nightly/run")
    assert (run.status_code, run.json()["queue"]) == (201, "night")
    assert [each["name"] for each in caller.get("/v1/schedules").json()["items"]] == ["nightly"]
    assert caller.delete("/v1/schedules/nightly").status_code == 204
    problem(caller.delete("/v1/schedules/nightly"), 404, "schedule-not-found")
    problem(caller.get("/v1/schedules/nightly"), 404, "schedule-not-found")
    problem(caller.post("/v1/schedules/nightly/run"), 404, "schedule-not-found")
    assert app.schedules.list() == []


@pytest.mark.parametrize(
    "wrong", [{}, {"cron": "never"}, {"cron": "* * * * *", "every": 5}, {"every": 5, "tz": "Mars/Olympus"}]
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong: dict[str, Any], caller: httpx.Client) -> None:
    problem(caller.post("/v1/schedules", json={"name": "n", "job": {"kind": "x"}, **wrong}), 422, "bad-input")
    assert caller.get("/v1/schedules").json() == {"items": []}


def test_credits_are_granted_once_per_key(caller: httpx.Client) -> None:
    problem(caller.get("/v1/credits/acme"), 404, "account-not-found")
    for _ in range(2):
        answer = caller.post("/v1/credits/acme/grant", json={"credits": 100, "key": "order-7"})
        assert answer.json()["granted"] == 100
    assert caller.get("/v1/credits/acme").json()["available"] == 100
    (entry,) = caller.get("/v1/credits/acme/ledger").json()["items"]
    assert (entry["verb"], entry["granted"]) == ("grant", 100)
    assert [each["tenant"] for each in caller.get("/v1/credits").json()["items"]] == ["acme"]
    problem(caller.post("/v1/credits/acme/grant", json={"credits": -101}), 402, "insufficient-credits")
    problem(caller.post("/v1/jobs", json={"kind": "x", "tenant": "acme", "credits": 101}), 402, "insufficient-credits")


def test_the_trail_goes_on_by_its_cursor(caller: httpx.Client) -> None:
    for n in range(3):
        caller.post(f"/v1/queues/q{n}/pause")
    first = caller.get("/v1/trail?limit=2").json()
    assert [each["target"] for each in first["items"]] == ["q2", "q1"]
    rest = caller.get("/v1/trail", params={"cursor": first["next"]}).json()
    assert [each["target"] for each in rest["items"]] == ["q0"]
    assert rest["next"] is None


def test_what_is_refused_is_not_on_the_trail(caller: httpx.Client) -> None:
    problem(caller.post(f"/v1/jobs/{UNKNOWN}/cancel"), 404, "job-not-found")
    assert deeds(caller) == []


def test_a_server_behind_a_path_says_so(app: Holdfast) -> None:
    with called(app, root_path="/jobs") as caller:
        assert caller.post("/v1/jobs", json={"kind": "x"}).status_code == 201
        problem(caller.post("/v1/jobs", content=b"{}", headers={"Content-Type": "text/plain"}), 415, "not-json")
        assert {"url": "/jobs"} in caller.get("/openapi.json").json()["servers"]


def test_a_server_can_be_part_of_another(app: Holdfast) -> None:
    shop = FastAPI()
    shop.mount("/jobs", asgi(app, auth=False, dashboard=False))
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(shop, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "the server is up")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/jobs") as caller:
            id_ = enqueue(caller)
            (job,) = caller.post("/v1/claims", json={"worker": "w", "wait": 5}).json()["jobs"]
            assert job["id"] == id_
            problem(caller.post("/v1/jobs", content=b"{}", headers={"Content-Type": "text/plain"}), 415, "not-json")
            problem(caller.get("/v1/nothing"), 404, "not-found")
    finally:
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()
