"""The worker protocol: claims, leases, outcomes; every one fenced by the token of the lease."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.domain import lifecycle
from holdfast.domain.job import Failure, NewJob, State
from holdfast.domain.moments import SECOND
from holdfast.port.store import Claim
from holdfast.runtime.upkeep import reap
from holdfast.server import serve
from tests.server.calling import called, problem
from tests.servers import until

UNKNOWN = "01900000-0000-7000-8000-000000000000"
SETTLEMENTS = [
    ("heartbeat", {}),
    ("checkpoint", {"step": "fetch"}),
    ("complete", {}),
    ("fail", {"code": "timeout"}),
    ("release", {}),
]


def enqueue(caller: httpx.Client, **body: Any) -> str:
    answer = caller.post("/v1/jobs", json={"kind": "resize", **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def claim(caller: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    answer = caller.post("/v1/claims", json={"worker": "w", **body})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def say(caller: httpx.Client, job: dict[str, Any], verb: str, **body: Any) -> httpx.Response:
    return caller.post(f"/v1/jobs/{job['id']}/{verb}", json={"token": job["lease"]["token"], **body})


def lose(app: Holdfast, id_: str) -> None:
    """Let a worker's lease end, and upkeep take its job back."""
    owner = app.get(id_).record.lease_owner
    assert owner is not None
    assert app.store.abandon(owner) == 1
    reap(app.store, app.settings)


def test_a_claim_gives_all_that_a_worker_needs(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller, payload={"photo": 7}, tenant="acme", trace_id="abc")
    (job,) = claim(caller, lease=60)
    assert (job["id"], job["kind"], job["tenant"], job["attempt"], job["trace_id"]) == (
        id_,
        "resize",
        "acme",
        1,
        "abc",
    )
    assert job["payload"] == {"photo": 7}
    assert job["steps"] == []
    record = app.get(id_).record
    assert job["lease"]["token"] == str(record.lease)
    assert job["lease"]["owner"] == record.lease_owner == "w"
    assert record.lease_expires_at is not None
    assert record.claimed_at is not None
    assert record.lease_expires_at - record.claimed_at == 60 * SECOND


def test_a_claim_takes_what_it_asked_for(caller: httpx.Client) -> None:
    ids = [enqueue(caller, queue=queue, priority=n) for n, queue in enumerate("aabbc")]
    assert [job["id"] for job in claim(caller, queues=["a"], limit=5)] == [ids[1], ids[0]]
    assert [job["id"] for job in claim(caller, limit=2)] == [ids[4], ids[3]]
    assert [job["id"] for job in claim(caller, limit=1_000)] == [ids[2]]
    assert claim(caller) == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"worker": ""},
        {"worker": "w", "limit": 0},
        {"worker": "w", "limit": 1_001},
        {"worker": "w", "wait": 31},
        {"worker": "w", "lease": 0},
        {"worker": "w", "lease": 1e9},
        {"worker": "w", "queues": []},
        {"worker": "w", "queues": "mail"},
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(body: dict[str, Any], caller: httpx.Client, app: Holdfast) -> None:
    enqueue(caller)
    problem(caller.post("/v1/claims", json=body), 422, "bad-request")
    assert app.counts()["queued"] == 1


def test_a_result_completes_a_job(caller: httpx.Client, app: Holdfast) -> None:
    enqueue(caller)
    (job,) = claim(caller)
    assert say(caller, job, "complete", result={"width": 640}).json() == {"id": job["id"], "state": "succeeded"}
    assert app.get(job["id"]).result(1) == {"width": 640}


def test_a_worker_that_asks_again_is_answered_as_before(caller: httpx.Client, app: Holdfast) -> None:
    for verb, body, state in (
        ("complete", {"result": 1}, "succeeded"),
        ("fail", {"code": "timeout"}, "retrying"),
        ("fail", {"code": "broken", "retryable": False}, "dead"),
        ("release", {"delay": 60}, "retrying"),
    ):
        id_ = enqueue(caller)
        (job,) = claim(caller)
        first, again = say(caller, job, verb, **body), say(caller, job, verb, **body)
        assert first.json() == again.json() == {"id": id_, "state": state}
        assert app.get(id_).version == 3


def test_a_failure_is_tried_again_and_then_dead(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller, retry={"shape": "fixed", "delays": [0]}, max_attempts=2)
    for state in ("retrying", "dead"):
        (job,) = claim(caller)
        assert say(caller, job, "fail", code="timeout", message="no\nanswer " + "x" * 500).json()["state"] == state
    told = caller.get(f"/v1/jobs/{id_}").json()
    assert told["cause"] == "exhausted"
    assert told["failure"]["code"] == "timeout"
    assert told["failure"]["message"].startswith("no answer x")
    assert len(told["failure"]["message"]) == 200


def test_a_failure_that_cannot_be_mended_is_final(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    (job,) = claim(caller)
    assert say(caller, job, "fail", code="bad-photo", retryable=False, traceback="at \x00 line 1").status_code == 200
    assert (app.get(id_).state, app.get(id_).cause) == ("dead", "rejected")
    (attempt,) = caller.get(f"/v1/jobs/{id_}/attempts", params={"traceback": True}).json()["items"]
    assert attempt["traceback"] == "at \\x00 line 1"
    (plain,) = caller.get(f"/v1/jobs/{id_}/attempts").json()["items"]
    assert "traceback" not in plain


def test_a_released_job_is_given_to_another_and_not_charged(caller: httpx.Client, app: Holdfast) -> None:
    enqueue(caller)
    (job,) = claim(caller)
    assert say(caller, job, "release").json()["state"] == "retrying"
    (again,) = claim(caller)
    assert (again["id"], again["attempt"]) == (job["id"], 1)
    say(caller, again, "release", delay=60)
    assert claim(caller) == []
    assert app.get(job["id"]).attempt == 0


def test_recorded_steps_are_told_to_whoever_goes_on(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller, retry={"shape": "fixed", "delays": [0]})
    (job,) = claim(caller)
    assert say(caller, job, "checkpoint", step="fetch", result={"bytes": 5}).json()["state"] == "running"
    assert say(caller, job, "checkpoint", step="fetch", result={"bytes": 6}).status_code == 200
    assert say(caller, job, "checkpoint", step="scan").status_code == 200
    say(caller, job, "fail", code="timeout")
    (again,) = claim(caller)
    assert again["steps"] == [{"name": "fetch", "result": {"bytes": 5}}, {"name": "scan", "result": None}]
    assert app.get(id_).step_cursor == 2
    problem(say(caller, again, "checkpoint", step="~mine"), 422, "bad-input")


def test_a_heartbeat_keeps_the_lease_and_tells_of_progress(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    (job,) = claim(caller, lease=5)
    before = app.get(id_).record.lease_expires_at
    answer = say(caller, job, "heartbeat", lease=60, progress=0.5, note="half\nway").json()
    after = app.get(id_).record
    assert before is not None
    assert after.lease_expires_at is not None
    assert after.lease_expires_at >= before + 50 * SECOND
    assert not answer["cancel_requested"]
    assert app.get(id_).progress == (0.5, "half way")


def test_a_cancelled_job_is_given_up_by_its_worker(caller: httpx.Client, app: Holdfast) -> None:
    for verb, body in (("release", {}), ("fail", {"code": "stopped"})):
        id_ = enqueue(caller)
        (job,) = claim(caller)
        app.cancel(id_)
        assert say(caller, job, "heartbeat").json()["cancel_requested"]
        assert say(caller, job, verb, **body).json()["state"] == "cancelled"
        ended = app.get(id_).record
        assert ended.state == "cancelled"
        assert say(caller, job, verb, **body).json()["state"] == "cancelled"  # its answer was lost, and it asks again
        assert problem(say(caller, job, "complete"), 409, "stale-token")["reason"] == "no-op-terminal"
        assert app.get(id_).record == ended


def test_a_worker_whose_lease_was_over_cannot_settle_the_cancellation(caller: httpx.Client, app: Holdfast) -> None:
    for given_back in (True, False):
        id_ = enqueue(caller)
        (job,) = claim(caller)
        if given_back:
            say(caller, job, "release", delay=60)
        else:
            lose(app, id_)
        app.cancel(id_)
        ended = app.get(id_).record
        assert ended.state == "cancelled"
        assert problem(say(caller, job, "fail", code="late"), 409, "stale-token")["reason"] == "no-op-terminal"
        assert app.get(id_).record == ended


def test_a_job_that_was_done_before_the_cancellation_came_through_is_done(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    (job,) = claim(caller)
    app.cancel(id_)
    assert say(caller, job, "complete").json()["state"] == "succeeded"


@pytest.mark.parametrize(("verb", "body"), SETTLEMENTS)
def test_a_late_worker_changes_nothing(verb: str, body: dict[str, Any], caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    (late,) = claim(caller)
    lose(app, id_)
    waiting = app.get(id_).record
    assert problem(say(caller, late, verb, **body), 409, "stale-token")["reason"] == "already-claimed"
    assert app.get(id_).record == waiting
    (owner,) = claim(caller)
    running = app.get(id_).record
    assert problem(say(caller, late, verb, **body), 409, "stale-token")["reason"] == "already-claimed"
    assert app.get(id_).record == running
    say(caller, owner, "complete", result=1)
    ended = app.get(id_).record
    assert problem(say(caller, late, verb, **body), 409, "stale-token")["reason"] == "no-op-terminal"
    assert app.get(id_).record == ended


@pytest.mark.parametrize(("verb", "body"), SETTLEMENTS)
def test_a_job_that_is_not_there_has_no_holder(verb: str, body: dict[str, Any], caller: httpx.Client) -> None:
    answer = caller.post(f"/v1/jobs/{UNKNOWN}/{verb}", json={"token": "1.abc", **body})
    problem(answer, 404, "job-not-found")
    for token in ("", "1", "x.abc", "1." + "a" * 100, "1.é", 1, None):
        answer = caller.post(f"/v1/jobs/{UNKNOWN}/{verb}", json={"token": token, **body})
        problem(answer, 422, "bad-request")


def test_many_callers_get_each_job_once(caller: httpx.Client, app: Holdfast) -> None:
    caller.post("/v1/jobs/batch", json={"jobs": [{"kind": "resize"}] * 60})

    def work(n: int) -> list[str]:
        done = []
        while jobs := claim(caller, worker=f"w{n}", limit=3):
            for job in jobs:
                assert say(caller, job, "complete").status_code == 200
                done.append(job["id"])
        return done

    with ThreadPoolExecutor(8) as workers:
        done = [id_ for each in workers.map(work, range(8)) for id_ in each]
    assert len(done) == len(set(done)) == 60
    assert app.counts()["succeeded"] == 60


def test_a_job_that_keeps_killing_its_worker_comes_to_an_end(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    for _ in range(app.get(id_).record.crash_cap):
        (job,) = claim(caller)
        assert job["id"] == id_
        lose(app, id_)
    assert (app.get(id_).state, app.get(id_).cause) == ("dead", "crashed")
    assert claim(caller) == []


def test_steps_are_undone_by_workers_of_the_code_that_made_them(caller: httpx.Client, app: Holdfast) -> None:
    id_ = enqueue(caller)
    (record,) = app.store.claim(Claim("python", "lease", 60 * SECOND, 1))
    app.store.commit([lifecycle.checkpoint(record, "charge", "1", undoable=True)])
    (held,) = app.store.read([id_])
    assert held is not None
    failure = lifecycle.fail(held, Failure("x", "", retryable=False), draw=0, retention=app.settings.retention)
    app.store.commit([failure])
    assert app.get(id_).record.state is State.RETRYING
    assert claim(caller) == []
    assert app.get(id_).record.available_at > app.store.now()


def test_whoever_waits_for_work_is_given_it_when_it_comes(caller: httpx.Client) -> None:
    with ThreadPoolExecutor(3) as others:
        waiting = [others.submit(claim, caller, worker=f"w{n}", wait=30) for n in range(3)]
        until(lambda: "listening" in caller.get("/readyz").json()["loops"], "somebody waits")
        ids = {enqueue(caller) for _ in range(3)}
        found = [job["id"] for each in waiting for job in each.result(20)]
    assert set(found) == ids
    assert len(found) == 3


def test_whoever_waits_for_other_queues_goes_on_waiting(caller: httpx.Client) -> None:
    with ThreadPoolExecutor(2) as others:
        mail = others.submit(claim, caller, queues=["mail"], wait=30)
        photos = others.submit(claim, caller, queues=["photos"], wait=30)
        until(lambda: "listening" in caller.get("/readyz").json()["loops"], "somebody waits")
        enqueue(caller, queue="photos")
        assert [job["queue"] for job in photos.result(20)] == ["photos"]
        assert not mail.done()
        enqueue(caller, queue="mail")
        assert [job["queue"] for job in mail.result(20)] == ["mail"]


def test_whoever_waits_is_given_a_job_when_it_comes_due(caller: httpx.Client) -> None:
    id_ = enqueue(caller, run_after=0.4)
    assert [job["id"] for job in claim(caller, wait=30)] == [id_]


def test_waiting_ends_with_the_time(caller: httpx.Client) -> None:
    assert claim(caller, wait=0.2) == []


def test_a_caller_that_hangs_up_leaves_nothing_claimed(caller: httpx.Client, app: Holdfast) -> None:
    host, port = caller.base_url.host, caller.base_url.port
    assert port is not None
    body = b'{"worker": "gone", "wait": 30}'
    head = f"POST /v1/claims HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, port)) as line:
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: "listening" in caller.get("/readyz").json()["loops"], "somebody waits")
    until(lambda: "listening" not in caller.get("/readyz").json()["loops"], "nobody waits any more")
    id_ = enqueue(caller)
    assert app.get(id_).state == "queued"
    assert [job["id"] for job in claim(caller)] == [id_]


def test_waiting_callers_hold_no_threads(app: Holdfast) -> None:
    with called(app) as caller, ThreadPoolExecutor(40) as others:
        claim(caller)
        waiting = [others.submit(claim, caller, worker=f"w{n}", wait=5) for n in range(40)]
        until(lambda: "listening" in caller.get("/readyz").json()["loops"], "somebody waits")
        listeners = [each for each in threading.enumerate() if each.name == "holdfast-doorbell"]
        assert len(listeners) == 1
        assert caller.get("/v1/queues").status_code == 200
        assert not any(each.done() for each in waiting)
        assert [each.result(20) for each in waiting] == [[]] * 40


def test_a_server_that_stops_lets_those_who_wait_go(app: Holdfast) -> None:
    serving = serve(app, port=0, dashboard=False)
    with ThreadPoolExecutor(2) as others, httpx.Client(base_url=serving.address, timeout=40) as caller:
        waiting = others.submit(claim, caller, wait=30)
        id_ = enqueue(caller, run_after=60)
        watching = others.submit(caller.get, f"/v1/jobs/{id_}", params={"wait": 30})
        loops = {"listening", "watching"}
        until(lambda: loops <= set(caller.get("/readyz").json()["loops"]), "both wait")
        serving.stop()
        assert waiting.result(5) == []
        assert watching.result(5).json()["state"] == "queued"
    assert serving.join(5)


def test_workers_that_come_by_http_are_listed(caller: httpx.Client) -> None:
    claim(caller, worker="node-1", queues=["photos"], kinds=["resize"])
    (worker,) = caller.get("/v1/workers").json()["items"]
    assert (worker["id"], worker["queues"], worker["kinds"]) == ("node-1", ["photos"], ["resize"])


def test_a_worker_that_only_beats_is_not_forgotten(
    caller: httpx.Client, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.roll._OFTEN", 0.0)
    for _ in range(3):
        enqueue(caller)
    one, two, three = claim(caller, worker="node-1", limit=3)
    first = app.store.workers()[0]
    say(caller, one, "heartbeat")
    (worker,) = app.store.workers()
    assert (worker.started_at, worker.running, worker.concurrency) == (first.started_at, 3, 3)
    assert worker.beat_at > first.beat_at
    assert worker.expires_at > first.expires_at
    say(caller, one, "complete")
    say(caller, two, "release")
    say(caller, three, "heartbeat")
    (worker,) = app.store.workers()
    assert (worker.started_at, worker.running) == (first.started_at, 1)


def test_the_servers_figures_tell_of_the_work_that_is_done_through_it(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db", upkeep=0.05)
    app.instrument(metrics=True)
    figures = partial(_figures, app)
    with called(app) as caller:
        for _ in range(3):
            enqueue(caller)
        done, failed = claim(caller, limit=2)
        for _ in range(2):  # what is asked twice is counted once
            say(caller, done, "complete")
            say(caller, failed, "fail", code="broken")
        (lost,) = claim(caller, lease=1)
        until(lambda: figures("leases_expired")[("default",)] == 1, "the server takes the job back")
        problem(say(caller, lost, "complete"), 409, "stale-token")
        problem(say(caller, done, "fail", code="late"), 409, "stale-token")
    assert figures("attempts_started")[("default", "other")] == 3
    assert figures("attempts_ended") == {("default", "other", "succeeded"): 1, ("default", "other", "failed"): 1}
    refused = figures("writes_refused")
    assert (refused[("complete", "already-claimed")], refused[("fail", "no-op-terminal")]) == (1, 1)
    app.close()


def _figures(app: Holdfast, name: str) -> dict[tuple[str, ...], float]:
    return {labels: value for (each, labels), value in app.telemetry.totals().numbers.items() if name in each}


def test_the_server_takes_back_what_workers_lose(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/lost.db", upkeep=0.05)
    with called(app) as caller:
        id_ = enqueue(caller)
        (job,) = claim(caller, lease=1)
        (again,) = claim(caller, wait=20)
        assert (again["id"], again["attempt"]) == (id_, 2)
        assert problem(say(caller, job, "complete"), 409, "stale-token")["reason"] == "already-claimed"
        assert caller.get("/readyz").json()["loops"]["upkeep"] < 5
    app.close()


def test_a_job_whose_payload_is_gone_does_not_hold_up_others(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/gone.db", max_payload=100)
    with called(app) as caller:
        gone = enqueue(caller, payload={"text": "x" * 500}, priority=1)
        there = enqueue(caller)
        (file,) = tmp_path.glob("gone.db-artifacts/**/*.json")
        file.unlink()
        assert [job["id"] for job in claim(caller, limit=2)] == [there]
        failure = app.get(gone).failure
        assert failure is not None
        assert (app.get(gone).state, failure.code) == ("retrying", "artifact_missing")
        problem(caller.get(f"/v1/jobs/{gone}", params={"payload": True}), 410, "artifact-missing")
    app.close()


def test_what_a_job_spends_is_the_tenants(caller: httpx.Client, app: Holdfast) -> None:
    app.grant("acme", 10)
    enqueue(caller, tenant="acme", credits=5)
    (job,) = claim(caller)
    assert say(caller, job, "checkpoint", step="one", spend=3).status_code == 200
    problem(say(caller, job, "complete", spend=100), 402, "insufficient-credits")
    assert say(caller, job, "complete", spend=1).json()["state"] == "succeeded"
    account = app.account("acme")
    assert account is not None
    assert (account.spent, account.reserved) == (4, 0)


def test_a_parent_hears_of_its_childs_end(caller: httpx.Client, app: Holdfast) -> None:
    parent = enqueue(caller)
    (record,) = app.store.claim(Claim("python", "lease", 60 * SECOND, 1))
    child = "01900000-0000-7000-8000-00000000c41d"
    spawned = lifecycle.suspend(
        record, "~gather", "null", awaits="$children", children=((child, NewJob("resize", "{}", parent=parent)),)
    )
    app.store.commit([spawned])
    (job,) = claim(caller)
    assert job["id"] == child
    say(caller, job, "complete")
    assert [each["id"] for each in claim(caller)] == [parent]
