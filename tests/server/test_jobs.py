"""Jobs over HTTP: enqueue, read, list."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from holdfast import Holdfast
from holdfast.domain.dialects import DIALECTS
from tests.server.calling import called, problem
from tests.servers import until

UNKNOWN = "01900000-0000-7000-8000-000000000000"


class Photo(BaseModel):
    id: int
    width: int = 640


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Holdfast]:
    app = Holdfast(f"sqlite:///{tmp_path}/known.db")

    @app.job(queue="photos")
    def resize(photo: Photo) -> int:
        return photo.width

    yield app
    app.close()


def post(caller: httpx.Client, **body: Any) -> httpx.Response:
    return caller.post("/v1/jobs", json=body)


def test_a_job_is_stored_with_all_that_was_chosen(caller: httpx.Client, app: Holdfast) -> None:
    answer = post(
        caller, kind="resize", payload={"photo": 7}, queue="photos", tenant="acme", user="ada", priority=5,
        key="photo:7", run_after=600, max_attempts=3, trace_id="abc", expires_after=3600,
        group="album-1",
    )  # fmt: skip
    assert answer.status_code == 201
    told = answer.json()
    job = app.get(told["id"])
    assert job.payload == {"photo": 7}
    assert (job.kind, job.queue, job.tenant, job.priority, job.key) == ("resize", "photos", "acme", 5, "photo:7")
    assert (told["state"], told["attempt"], told["max_attempts"], told["duplicate"]) == ("queued", 0, 3, False)
    assert told["group"] == "album-1"
    assert job.available_at - job.created_at == timedelta(minutes=10)
    assert datetime.fromisoformat(told["available_at"]) == job.available_at
    assert "payload" not in told


def test_a_time_to_run_is_written_in_iso_8601(caller: httpx.Client) -> None:
    told = post(caller, kind="resize", run_at="2030-01-01T03:00:00+01:00").json()
    assert told["available_at"] == "2030-01-01T02:00:00+00:00"
    for wrong in ("2030-01-01T03:00:00", "soon, says the canary", 1_893_456_000):
        assert "canary" not in problem(post(caller, kind="resize", run_at=wrong), 422, "bad-request")["detail"]
    problem(post(caller, kind="resize", run_at="2030-01-01T03:00:00Z", run_after=1), 422, "bad-input")


def test_a_policy_of_retries_can_be_chosen(caller: httpx.Client, app: Holdfast) -> None:
    retry = {"shape": "table", "delays": [30, 120]}
    told = post(caller, kind="resize", retry=retry, max_attempts=2).json()
    assert told["retry"].startswith("table:30000000,120000000:")
    assert told["max_attempts"] == 2
    fixed = post(caller, kind="resize", retry={"shape": "fixed", "delays": [1]}).json()
    assert (fixed["retry"].partition(":")[0], fixed["max_attempts"]) == ("fixed", 5)


def test_the_same_key_gives_the_same_job(caller: httpx.Client) -> None:
    first = post(caller, kind="resize", payload={"photo": 7}, key="photo:7")
    again = post(caller, kind="resize", payload={"photo": 7}, key="photo:7")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["duplicate"]


def test_the_same_key_with_another_payload_is_a_conflict(caller: httpx.Client, app: Holdfast) -> None:
    post(caller, kind="resize", payload={"photo": 7}, key="photo:7")
    problem(post(caller, kind="resize", payload={"photo": 8}, key="photo:7"), 409, "key-conflict")
    assert app.counts().total == 1


def test_callers_at_the_same_moment_get_one_job_per_key(caller: httpx.Client, app: Holdfast) -> None:
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda n: post(caller, kind="resize", key=f"photo:{n % 5}"), range(40)))
    assert sorted({answer.status_code for answer in answers}) == [200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 5
    assert app.counts().total == 5


def test_a_batch_is_stored_whole_or_not_at_all(caller: httpx.Client, app: Holdfast) -> None:
    jobs = [{"kind": "resize", "payload": {"photo": n}, "key": f"photo:{n}"} for n in range(3)]
    answer = caller.post("/v1/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 201
    assert [each["duplicate"] for each in answer.json()["items"]] == [False] * 3
    assert caller.post("/v1/jobs/batch", json={"jobs": jobs}).status_code == 200
    conflicting = [{"kind": "other"}, {"kind": "resize", "payload": {"photo": 9}, "key": "photo:1"}]
    problem(caller.post("/v1/jobs/batch", json={"jobs": conflicting}), 409, "key-conflict")
    problem(caller.post("/v1/jobs/batch", json={"jobs": []}), 422, "bad-request")
    problem(caller.post("/v1/jobs/batch", json={"jobs": [{"kind": "x"}] * 1_001}), 422, "bad-request")
    assert app.counts().total == 3


def test_a_known_kind_validates_its_payload_and_others_are_refused(known: Holdfast) -> None:
    with called(known) as caller:
        stored = post(caller, kind="resize", payload={"id": 7}).json()
        assert stored["queue"] == "photos"
        assert known.get(stored["id"]).payload == {"id": 7, "width": 640}
        said = problem(post(caller, kind="resize", payload={"id": "secret words"}), 422, "bad-payload")
        assert "field 'id'" in said["detail"]
        assert "secret" not in said["detail"]
        problem(post(caller, kind="other"), 422, "unknown-kind")
    with called(known, any_kind=True) as caller:
        assert post(caller, kind="other").status_code == 201
        problem(post(caller, kind="resize", payload={}), 422, "bad-payload")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "bad-request"),
        ({"kind": ""}, "bad-request"),
        ({"kind": "x" * 256}, "bad-request"),
        ({"kind": "a\nb"}, "bad-input"),
        ({"kind": "x", "payload": [1]}, "bad-request"),
        ({"kind": "x", "payload": {"n": 2**64}}, "bad-payload"),
        ({"kind": "x", "payload": {"n": "\x00"}}, "bad-payload"),
        ({"kind": "x", "priority": "5"}, "bad-request"),
        ({"kind": "x", "priority": True}, "bad-request"),
        ({"kind": "x", "run_after": -1}, "bad-request"),
        ({"kind": "x", "run_after": 1e300}, "bad-request"),
        ({"kind": "x", "unique": "active"}, "bad-input"),
        ({"kind": "x", "trigger": "whim"}, "bad-request"),
        ({"kind": "x", "colour": "red"}, "bad-request"),
        ({"kind": "x", "retry": {"shape": "table", "delays": []}}, "bad-request"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_a_sentence(
    body: dict[str, Any], code: str, caller: httpx.Client, app: Holdfast
) -> None:
    problem(caller.post("/v1/jobs", json=body), 422, code)
    assert app.counts().total == 0


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"kind": "x", "payload": {"n": NaN}}'])
def test_a_body_that_is_no_job_in_json_is_refused(text: bytes, caller: httpx.Client, app: Holdfast) -> None:
    answer = caller.post("/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"].endswith(".")
    assert app.counts().total == 0


def test_a_lone_surrogate_is_refused(caller: httpx.Client) -> None:
    text = '{"kind": "x", "payload": {"n": "\\ud800"}}'
    answer = caller.post("/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    problem(answer, 422, "bad-payload")
    text = '{"kind": "\\ud800"}'
    answer = caller.post("/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


def test_a_payload_that_is_too_large_is_refused(caller: httpx.Client, app: Holdfast) -> None:
    problem(post(caller, kind="x", payload={"text": "x" * 262_144}), 413, "too-large")
    assert post(caller, kind="x", payload={"text": "x" * 262_000}).status_code == 201


def test_a_job_is_read_with_its_payload_unless_that_is_left_out(caller: httpx.Client) -> None:
    id_ = post(caller, kind="resize", payload={"photo": 7}).json()["id"]
    plain = caller.get(f"/v1/jobs/{id_}", params={"payload": False}).json()
    whole = caller.get(f"/v1/jobs/{id_}").json()
    assert "payload" not in plain
    assert whole["payload"] == {"photo": 7}
    assert whole["result"] is None


def test_what_lies_outside_the_store_is_read_from_there(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/large.db", max_payload=1_000)
    with called(app) as caller:
        id_ = post(caller, kind="resize", payload={"text": "x" * 5_000}).json()["id"]
        assert app.get(id_).record.payload.startswith('{"$artifact":')
        assert caller.get(f"/v1/jobs/{id_}", params={"payload": True}).json()["payload"]["text"] == "x" * 5_000
        (claimed,) = caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]
        assert claimed["payload"]["text"] == "x" * 5_000
        held = {"token": claimed["lease"]["token"], "result": "y" * 5_000}
        assert caller.post(f"/v1/jobs/{id_}/complete", json=held).status_code == 200
        assert caller.get(f"/v1/jobs/{id_}", params={"payload": True}).json()["result"] == "y" * 5_000
    app.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_job_is_shown_in_each_dialect(dialect: str, caller: httpx.Client, app: Holdfast) -> None:
    id_ = post(caller, kind="resize", payload={"photo": "canary"}).json()["id"]
    shown = caller.get(f"/v1/jobs/{id_}", params={"dialect": dialect})
    record = app.get(id_).record
    expected = DIALECTS[dialect].render(record, app.store.now())
    assert shown.json() == expected
    brief = caller.get(f"/v1/jobs/{id_}", params={"dialect": dialect, "payload": False})
    assert brief.json() == {name: value for name, value in expected.items() if name != "payload"}
    listed = caller.get("/v1/jobs", params={"dialect": dialect})
    assert listed.json()["items"] == [brief.json()]
    assert "canary" not in listed.text
    problem(caller.get(f"/v1/jobs/{id_}?dialect=klingon"), 422, "bad-request")


def test_whoever_waits_for_a_job_hears_of_its_end(caller: httpx.Client, app: Holdfast) -> None:
    id_ = post(caller, kind="resize").json()["id"]
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(caller.get, f"/v1/jobs/{id_}", params={"wait": 30, "payload": True})
        until(lambda: "watching" in caller.get("/readyz").json()["loops"], "somebody waits")
        (job,) = caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]
        assert not waiting.done()
        caller.post(f"/v1/jobs/{id_}/complete", json={"token": job["lease"]["token"], "result": 5})
        assert waiting.result(10).json()["result"] == 5
    assert caller.get(f"/v1/jobs/{id_}", params={"wait": 30}).json()["state"] == "succeeded"


def test_waiting_for_a_job_ends_with_the_time(caller: httpx.Client) -> None:
    id_ = post(caller, kind="resize").json()["id"]
    assert caller.get(f"/v1/jobs/{id_}", params={"wait": 0.05}).json()["state"] == "queued"
    until(lambda: "watching" not in caller.get("/readyz").json()["loops"], "nobody looks after it any more")
    problem(caller.get(f"/v1/jobs/{id_}", params={"wait": 31}), 422, "bad-request")


def test_a_job_that_is_not_there_is_told(caller: httpx.Client) -> None:
    for path in ("", "/attempts", "/steps", "/history", "/why"):
        problem(caller.get(f"/v1/jobs/{UNKNOWN}{path}"), 404, "job-not-found")
    problem(caller.get("/v1/jobs/7"), 422, "bad-request")


def test_a_listing_goes_on_by_its_cursor(caller: httpx.Client) -> None:
    ids = [post(caller, kind=f"kind-{n % 2}").json()["id"] for n in range(10)]
    seen, cursor = [], None
    while True:
        params = {"limit": "2", "kind": "kind-1"} | ({} if cursor is None else {"cursor": str(cursor)})
        page = caller.get("/v1/jobs", params=params).json()
        seen += [job["id"] for job in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ids[1::2][::-1]


def test_a_cursor_belongs_to_its_question(caller: httpx.Client) -> None:
    for _ in range(3):
        post(caller, kind="resize")
    cursor = caller.get("/v1/jobs", params={"limit": 2, "kind": "resize"}).json()["next"]
    forged = cursor[:-1] + ("A" if cursor[-1] != "A" else "B")
    respelt = cursor[:-1] + chr(ord(cursor[-1]) + 1)  # the same bytes: the last two bits are not used
    for params in (
        {"cursor": cursor},
        {"cursor": cursor, "kind": "other"},
        {"cursor": forged, "kind": "resize"},
        {"cursor": respelt, "kind": "resize"},
        {"cursor": cursor + "A", "kind": "resize"},
        {"cursor": "", "kind": "resize"},
        {"cursor": "é" * 43, "kind": "resize"},
        {"cursor": UNKNOWN, "kind": "resize"},
    ):
        problem(caller.get("/v1/jobs", params=params), 400, "bad-cursor")


def test_cursors_outlive_the_server(app: Holdfast) -> None:
    with called(app) as caller:
        for _ in range(3):
            post(caller, kind="resize")
        cursor = caller.get("/v1/jobs", params={"limit": 2}).json()["next"]
    with called(app) as caller:
        assert len(caller.get("/v1/jobs", params={"limit": 2, "cursor": cursor}).json()["items"]) == 1


@pytest.mark.parametrize("limit", ["0", "501", "1000000000", "-1", "x"])
def test_pages_are_capped(limit: str, caller: httpx.Client) -> None:
    problem(caller.get("/v1/jobs", params={"limit": limit}), 422, "bad-request")


@pytest.mark.parametrize("asked", ["stat=dead", "state=dead&state=queued", "limit=1&offset=5"])
def test_a_filter_that_is_misspelt_finds_nothing(asked: str, caller: httpx.Client) -> None:
    problem(caller.get(f"/v1/jobs?{asked}"), 422, "bad-request")


def test_what_became_of_a_job_is_told_in_order(caller: httpx.Client) -> None:
    id_ = post(caller, kind="resize", retry={"shape": "fixed", "delays": [0]}).json()["id"]
    for code in ("timeout", None):
        (job,) = caller.post("/v1/claims", json={"worker": "w"}).json()["jobs"]
        token = job["lease"]["token"]
        caller.post(f"/v1/jobs/{id_}/checkpoint", json={"token": token, "step": "fetch", "result": 1})
        if code:
            caller.post(f"/v1/jobs/{id_}/fail", json={"token": token, "code": code})
        else:
            caller.post(f"/v1/jobs/{id_}/complete", json={"token": token})
    history = caller.get(f"/v1/jobs/{id_}/history").json()["items"]
    told = [each["what"] for each in history]
    assert told == ["created", "claimed", "step", "fail", "claimed", "complete", "succeeded"]
    assert [each["at"] for each in history] == sorted(each["at"] for each in history)
    attempts = caller.get(f"/v1/jobs/{id_}/attempts").json()["items"]
    assert [(each["attempt"], each["outcome"], each["code"]) for each in attempts] == [
        (1, "fail", "timeout"),
        (2, "complete", None),
    ]
    steps = caller.get(f"/v1/jobs/{id_}/steps", params={"payload": True}).json()["items"]
    assert [(each["name"], each["result"]) for each in steps] == [("fetch", 1)]


def test_why_a_job_does_not_run_is_told(caller: httpx.Client) -> None:
    id_ = post(caller, kind="resize", queue="photos").json()["id"]
    assert caller.get(f"/v1/jobs/{id_}/why").json()["reason"] == "no-worker"
    caller.post("/v1/claims", json={"worker": "w", "queues": ["photos"], "kinds": ["resize"]})
    assert caller.get(f"/v1/jobs/{id_}/why").json()["reason"] == "running"


def test_a_worker_that_names_no_kinds_may_know_any(caller: httpx.Client) -> None:
    caller.post("/v1/claims", json={"worker": "w", "queues": ["photos"]})
    id_ = post(caller, kind="resize", queue="photos").json()["id"]
    assert caller.get(f"/v1/jobs/{id_}/why").json()["reason"] == "waiting"


def test_the_same_server_runs_on_postgresql(postgres_url: str) -> None:
    app = Holdfast(postgres_url)
    with called(app) as caller, ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda n: post(caller, kind="resize", key=str(n % 10)), range(20)))
        assert len({answer.json()["id"] for answer in answers}) == 10
        waiting = callers.submit(caller.post, "/v1/claims", json={"worker": "w", "queues": ["late"], "wait": 30})
        until(lambda: "listening" in caller.get("/readyz").json()["loops"], "somebody waits")
        late = post(caller, kind="resize", queue="late").json()
        (job,) = waiting.result(20).json()["jobs"]
        assert job["id"] == late["id"]
        page = caller.get("/v1/jobs", params={"limit": 5, "state": "queued"}).json()
        more = caller.get("/v1/jobs", params={"limit": 500, "state": "queued", "cursor": page["next"]}).json()
        assert len(page["items"] + more["items"]) == 10
        done = caller.post(f"/v1/jobs/{job['id']}/complete", json={"token": job["lease"]["token"]})
        assert done.json()["state"] == "succeeded"
    app.close()


def test_answers_are_nobody_elses(caller: httpx.Client) -> None:
    answer = post(caller, kind="resize")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers
    assert json.loads(answer.text)["kind"] == "resize"
