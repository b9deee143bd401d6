"""Inbound hooks: a signed request becomes one job, and nothing else does."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from holdfast import BadInput, BadPayload, BadSignature, Holdfast, Webhook, retention
from holdfast.client.sinks.signature import SIGNATURE, key_of, signature
from holdfast.runtime import upkeep
from holdfast.server import Limits, asgi
from holdfast.testing.clock import ManualClock
from tests.server.loopback import serving
from tests.surfaces.processes import until
from tests.workers import LONG, Working

SECRET = "a secret of sixteen bytes or more"
OTHER = "another secret, as long as the first"


class Push(BaseModel):
    ref: str
    size: int = 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    match request.param:
        case "postgres":
            opened = Holdfast(str(request.getfixturevalue("postgres_url")), clock=clock)
        case "sqlite":
            opened = Holdfast(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
        case _:
            opened = Holdfast("memory://", clock=clock, retention=retention(cancelled=1))
    with closing(opened):
        yield hooked(opened)


def hooked(app: Holdfast) -> Holdfast:
    @app.job
    def pushed(push: Push) -> str:
        return push.ref

    app.hook("github", pushed.using(tenant="acme"), secret=SECRET)
    app.hook("both", pushed, secret=[OTHER, SECRET], tolerance=10, header="Stripe-Signature")
    return app


def signed(body: bytes, at: float, secret: str = SECRET, header: str = SIGNATURE) -> dict[str, str]:
    return {header: signature(key_of(secret), int(at), body)}


def seconds(clock: ManualClock) -> float:
    return clock.now() / 1_000_000


BODY = json.dumps({"ref": "refs/heads/main", "size": 3}).encode()


def test_a_signed_request_becomes_a_job(app: Holdfast, clock: ManualClock) -> None:
    received = app.hooks.receive("github", signed(BODY, seconds(clock)), BODY)
    job = app.get(received.job_id)
    assert not received.duplicate
    assert (job.kind, job.trigger, job.tenant, job.payload) == ("pushed", "webhook", "acme", json.loads(BODY))
    assert job.key is not None
    assert job.key.startswith("hook:github:")


def test_the_same_signed_request_is_one_job_however_often_it_is_sent(app: Holdfast, clock: ManualClock) -> None:
    headers = signed(BODY, seconds(clock))
    with ThreadPoolExecutor(8) as pool:
        received = list(pool.map(lambda _: app.hooks.receive("github", headers, BODY), range(24)))
    assert len({one.job_id for one in received}) == 1
    assert [one.duplicate for one in received].count(False) == 1
    assert app.counts().total == 1


def test_a_header_that_is_spelled_otherwise_is_the_same_request(app: Holdfast, clock: ManualClock) -> None:
    value = signed(BODY, seconds(clock))[SIGNATURE]
    at, _, digest = value.partition(",")
    first = app.hooks.receive("github", {SIGNATURE: value}, BODY)
    again = app.hooks.receive("github", {SIGNATURE.lower(): f" {digest} , v1={'0' * 64}, t=00{at[2:]}"}, BODY)
    assert (again.job_id, again.duplicate) == (first.job_id, True)


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_a_request_is_not_good_again_once_its_job_is_purged(app: Holdfast, clock: ManualClock) -> None:
    headers = signed(BODY, seconds(clock))
    first = app.hooks.receive("github", headers, BODY)
    app.cancel(first.job_id)
    clock.advance(seconds=200)
    upkeep.purge(app.store, app.settings)
    assert app.counts().total == 0
    assert app.hooks.receive("github", headers, BODY) == (first.job_id, True)
    assert app.counts().total == 0


def test_what_is_remembered_of_requests_is_forgotten_when_they_are_stale(app: Holdfast, clock: ManualClock) -> None:
    app.hooks.receive("github", signed(BODY, seconds(clock)), BODY)
    assert len(app.store.pages("hook:github")) == 1
    clock.advance(hours=2)
    assert app.store.pages("hook:github") == []


def test_either_secret_fits_while_it_is_changed_and_under_the_hook_s_own_header(
    app: Holdfast, clock: ManualClock
) -> None:
    for secret in (SECRET, OTHER):
        body = json.dumps({"ref": secret}).encode()
        app.hooks.receive("both", signed(body, seconds(clock), secret, "stripe-signature"), body)
    assert app.counts().total == 2
    with pytest.raises(BadSignature):
        app.hooks.receive("both", signed(BODY, seconds(clock)), BODY)


@pytest.mark.parametrize("late", [-301, 301])
def test_a_signature_of_another_time_is_refused_and_says_why(app: Holdfast, clock: ManualClock, late: int) -> None:
    with pytest.raises(BadSignature, match=r"more than 300 s from this server's clock; sign again"):
        app.hooks.receive("github", signed(BODY, seconds(clock) + late), BODY)
    assert app.counts().total == 0


def test_whatever_is_not_rightly_signed_is_answered_in_the_same_words(app: Holdfast, clock: ManualClock) -> None:
    now = seconds(clock)
    good = signed(BODY, now)[SIGNATURE]
    at, _, digest = good.partition(",")
    wrong: list[tuple[str, dict[str, str], bytes]] = [
        ("github", {}, BODY),
        ("github", {SIGNATURE: ""}, BODY),
        ("github", {SIGNATURE: at}, BODY),
        ("github", {SIGNATURE: digest}, BODY),
        ("github", {SIGNATURE: f"{at},{at},{digest}"}, BODY),
        ("github", {SIGNATURE: f"{at},v0={digest[3:]}"}, BODY),
        ("github", {SIGNATURE: f"{at},{digest.upper()}"}, BODY),
        ("github", {SIGNATURE: f"t={int(now) + 1},{digest}"}, BODY),
        ("github", {SIGNATURE: good, SIGNATURE.lower(): good}, BODY),
        ("github", {SIGNATURE: good}, BODY + b" "),
        ("github", signed(BODY, now, OTHER), BODY),
        ("github", signed(BODY, now - 10_000, OTHER), BODY),
        ("gitlab", {SIGNATURE: good}, BODY),
        ("gitlab", {}, BODY),
        ("", {SIGNATURE: good}, BODY),
    ]
    said = set()
    for name, headers, body in wrong:
        with pytest.raises(BadSignature) as refused:
            app.hooks.receive(name, headers, body)
        said.add(str(refused.value))
    assert said == {"There is no such hook, or the request was not signed with its secret; nothing was enqueued."}
    assert app.counts().total == 0


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"ref": 5}', b"\xff", b"not json", b"[" * 100_000, b'{"ref":NaN}']
)
def test_a_body_that_the_job_does_not_accept_enqueues_nothing_and_can_be_sent_again(
    app: Holdfast, clock: ManualClock, body: bytes
) -> None:
    headers = signed(body, seconds(clock))
    for _ in range(2):
        with pytest.raises(BadPayload, match=r"^pushed: "):
            app.hooks.receive("github", headers, body)
    assert app.counts().total == 0
    assert app.store.pages("hook:github") == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": ""}, "part of its address"),
        ({"name": "a/b"}, "part of its address"),
        ({"name": 5}, "part of its address"),
        ({"name": "x" * 101}, "part of its address"),
        ({"secret": None}, "needs a secret"),
        ({"secret_env": "HOOK"}, "one of secret= and secret_env="),
        ({"secret": "short"}, "16 bytes or more"),
        ({"secret": []}, "a list of those"),
        ({"secret": [SECRET, "short"]}, "16 bytes or more"),
        ({"tolerance": 0}, "between a second and a day"),
        ({"tolerance": 100_000}, "between a second and a day"),
        ({"header": "No Header"}, "the name of a header"),
        ({"job": "pushed"}, "takes a job"),
    ],
)
def test_a_hook_that_cannot_be_kept_is_refused_at_once(options: dict[str, Any], sentence: str) -> None:
    app = Holdfast("memory://")

    @app.job
    def pushed(push: Push) -> None: ...

    asked: dict[str, Any] = {"name": "github", "job": pushed, "secret": SECRET} | options
    with pytest.raises(BadInput, match=sentence):
        app.hook(**asked)
    assert len(app.hooks) == 0


def test_a_body_that_somebody_has_parsed_already_is_refused() -> None:
    with pytest.raises(BadInput, match="as it came, as bytes, not as dict"):
        Holdfast("memory://").hooks.receive("github", {}, {})  # type: ignore[arg-type]


def test_a_secret_from_the_environment_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast("memory://")

    @app.job
    def pushed(push: Push) -> None: ...

    app.hook("github", pushed, secret_env="GITHUB_HOOK_SECRET")
    monkeypatch.delenv("GITHUB_HOOK_SECRET", raising=False)
    with pytest.raises(BadInput, match="takes its secret from GITHUB_HOOK_SECRET, which is not set"):
        asgi(app, auth=False, dashboard=False)
    monkeypatch.setenv("GITHUB_HOOK_SECRET", SECRET)
    asgi(app, auth=False, dashboard=False)
    assert not app.hooks.receive("github", signed(BODY, time.time()), BODY).duplicate
    with pytest.raises(BadInput, match="declared already"):
        app.hook("github", pushed, secret=SECRET)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Holdfast, str]]:
    """A server that asks for tokens, on a file."""
    with closing(hooked(Holdfast(f"sqlite:///{tmp_path}/jobs.db"))) as app:
        app.tokens.create("somebody", ["read"])
        with serving(app, auth=True) as url:
            yield app, url


def test_a_hook_is_answered_without_a_token_and_once(server: tuple[Holdfast, str]) -> None:
    app, url = server
    headers = signed(BODY, time.time())
    first = httpx.post(f"{url}/v1/hooks/github", content=BODY, headers=headers)
    again = httpx.post(f"{url}/v1/hooks/github", content=BODY, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == {"id": again.json()["id"], "duplicate": False}
    assert again.json()["duplicate"]
    assert app.get(first.json()["id"]).trigger == "webhook"


def test_an_unknown_hook_answers_like_a_wrong_signature(server: tuple[Holdfast, str]) -> None:
    app, url = server
    good, bad = signed(BODY, time.time()), signed(BODY, time.time(), OTHER)
    answers = [
        httpx.post(f"{url}/v1/hooks/gitlab", content=BODY, headers=good),
        httpx.post(f"{url}/v1/hooks/github", content=BODY, headers=bad),
        httpx.post(f"{url}/v1/hooks/github", content=BODY),
        httpx.post(f"{url}/v1/hooks/{'x' * 90}", content=b""),
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].json()["code"] == "bad-signature"
    assert app.counts().total == 0


def test_what_is_signed_but_does_not_fit_is_told_without_repeating_it(server: tuple[Holdfast, str]) -> None:
    _, url = server
    body = b'{"ref": ["canary"]}'
    answer = httpx.post(f"{url}/v1/hooks/github", content=body, headers=signed(body, time.time()))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-payload")
    assert "canary" not in answer.text


def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    limits = Limits(body=1_000)
    body = json.dumps({"ref": "x" * 2_000}).encode()
    with (
        closing(hooked(Holdfast(f"sqlite:///{tmp_path}/jobs.db"))) as app,
        serving(app, limits=limits) as url,
    ):
        answer = httpx.post(f"{url}/v1/hooks/github", content=body, headers=signed(body, time.time()))
        assert (answer.status_code, app.counts().total) == (413, 0)


def test_a_server_that_only_shows_takes_no_hooks(tmp_path: Path) -> None:
    with closing(hooked(Holdfast(f"sqlite:///{tmp_path}/jobs.db"))) as app, serving(app, read_only=True) as url:
        answer = httpx.post(f"{url}/v1/hooks/github", content=BODY, headers=signed(BODY, time.time()))
        assert (answer.status_code, app.counts().total) == (403, 0)


def test_one_holdfast_s_events_become_another_s_jobs(tmp_path: Path, working: Working) -> None:
    """Our own webhook sink, on one side, and a hook on the other."""
    receiver = Holdfast(f"sqlite:///{tmp_path}/receiver.db")
    sender = Holdfast(f"sqlite:///{tmp_path}/sender.db", upkeep=0.05)

    @receiver.job
    def heard(events: list[dict[str, Any]]) -> None: ...

    @sender.job
    def add(a: int, b: int) -> int:
        return a + b

    receiver.hook("events", heard, secret=SECRET)
    with closing(receiver), closing(sender), serving(receiver) as url:
        target = f"{url}/v1/hooks/events"
        sender.sink(
            "there",
            Webhook(target, secret=SECRET, allow_http=True, allow_private=True),
            names=["workflow_run_completed"],
        )
        with working(sender):
            add.enqueue(1, 2).result(LONG)
            until(lambda: receiver.counts().total, within=LONG)
        events = [event for job in receiver.find() for event in job.payload["events"]]  # type: ignore[index]
        assert [event["name"] for event in events] == ["workflow_run_completed"]


def test_importing_holdfast_imports_nothing_of_the_server() -> None:
    code = "import sys, holdfast; print([n for n in ('fastapi', 'httpx', 'fsspec', 'uvicorn') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_many_senders_at_once_are_all_served(server: tuple[Holdfast, str]) -> None:
    app, url = server
    start = threading.Barrier(8)

    def send(n: int) -> list[int]:
        start.wait(LONG)
        with httpx.Client() as client:
            bodies = [json.dumps({"ref": f"{n}/{m}"}).encode() for m in range(10)]
            requests = [(body, signed(body, time.time())) for body in bodies] * 2
            address = f"{url}/v1/hooks/github"
            return [client.post(address, content=body, headers=headers).status_code for body, headers in requests]

    with ThreadPoolExecutor(8) as pool:
        codes = [code for some in pool.map(send, range(8)) for code in some]
    assert (codes.count(201), codes.count(200), app.counts().total) == (80, 80, 80)
