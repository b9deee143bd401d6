"""What is refused before a route sees it: strangers' names, other sites, bodies that are too large or too slow."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage

import httpx
import pytest

from holdfast import Holdfast
from holdfast.server import Limits, serving
from holdfast.server.pulse import STUCK, Pulse
from holdfast.stores.sqlite import SqliteStore
from tests.server.calling import called, problem

HEAD = "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextmanager
def line(caller: httpx.Client) -> Iterator[socket.socket]:
    """Give a bare connection to a server."""
    assert caller.base_url.port is not None
    with socket.create_connection((caller.base_url.host, caller.base_url.port), timeout=20) as bare:
        yield bare


def heard(bare: socket.socket) -> bytes:
    """Read until the server hangs up."""
    told = b""
    while data := bare.recv(65_536):
        told += data
    return told


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::", "10.0.0.1"])
def test_a_server_of_this_machine_goes_by_its_own_names(host: str, caller: httpx.Client) -> None:
    for path in ("/v1/jobs", "/healthz", "/openapi.json"):
        answer = caller.get(path, headers={"Host": host})
        problem(answer, 421, "wrong-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_it_is_called_by_any_of_them(host: str, caller: httpx.Client) -> None:
    assert caller.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_another_site_cannot_change_anything(headers: dict[str, str], caller: httpx.Client, app: Holdfast) -> None:
    problem(caller.post("/v1/queues/mail/pause", headers=headers), 403, "cross-site")
    problem(caller.post("/v1/jobs", json={"kind": "x"}, headers=headers), 403, "cross-site")
    assert app.paused() == frozenset()
    assert app.counts().total == 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_says_that_it_is_json(kind: str, caller: httpx.Client, app: Holdfast) -> None:
    answer = caller.post("/v1/jobs", content=b'{"kind": "x"}', headers={"Content-Type": kind})
    problem(answer, 415, "not-json")
    assert app.counts().total == 0


def test_an_encoded_body_is_refused(caller: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    problem(caller.post("/v1/jobs", content=b"\x1f\x8b", headers=headers), 415, "encoded")


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(caller: httpx.Client) -> None:
    with line(caller) as bare:
        bare.sendall(f"{HEAD}Content-Length: 1048577\r\n\r\n".encode())
        assert b"413" in heard(bare).split(b"\r\n")[0]
    for length in ("-1", "x", "9" * 5_000):
        with line(caller) as bare:
            bare.sendall(f"{HEAD}Content-Length: {length}\r\n\r\n".encode())
            assert heard(bare).split(b" ")[1] in (b"400", b"413")


def test_a_body_that_says_nothing_of_its_length_is_bounded(caller: httpx.Client) -> None:
    with line(caller) as bare:
        bare.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        told = b""
        for _ in range(20):
            try:
                bare.sendall(b"20000\r\n" + b" " * 0x20000 + b"\r\n")
            except OSError:
                break
        told = _read(bare)
        assert told == b"" or b"413" in told.split(b"\r\n")[0]
    assert caller.get("/healthz").status_code == 200


def _read(bare: socket.socket) -> bytes:
    try:
        return heard(bare)
    except OSError:
        return b""  # the server has hung up on what was still being sent


def test_a_caller_that_sends_its_body_too_slowly_is_refused(app: Holdfast) -> None:
    with called(app, limits=Limits(patience=0.3)) as caller, line(caller) as bare:
        bare.sendall(f'{HEAD}Content-Length: 100\r\n\r\n{{"kind"'.encode())
        told = heard(bare)
        assert b"408" in told.split(b"\r\n")[0]
        assert b"too-slow" in told
        assert caller.get("/healthz").status_code == 200


def test_a_caller_that_sends_its_head_too_slowly_is_hung_up_on(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADERS", 0.4)
    with called(app) as caller, line(caller) as silent, line(caller) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        feeding = threading.Thread(target=_feed, args=(slow,))
        feeding.start()
        assert heard(silent) == b""
        assert _read(slow) == b""
        feeding.join()
        with line(caller) as patient:
            for _ in range(3):
                patient.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            patient.sendall(b"GET /he")
            assert heard(patient).count(b"HTTP/1.1 200") == 3


def _feed(slow: socket.socket) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            slow.sendall(b"X-More: 1\r\n")
        except OSError:
            return
        threading.Event().wait(0.05)


def test_a_head_that_is_too_large_is_refused(caller: httpx.Client) -> None:
    with line(caller) as bare:
        bare.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Long: " + b"x" * 100_000)
        assert b"400" in _read(bare).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"kind": "x", "payload": ' + '{"a":' * 1_000 + "1" + "}" * 1_000 + "}",
        '{"kind": "x", "payload": {' + ",".join(f'"k{n}": 1' for n in range(70_000)) + "}}",
        '{"kind": "x", "priority": ' + "9" * 100_000 + "}",
        '{"kind": "x", "payload": {"n": ' + "9" * 100_000 + "}}",
        '{"kind": "x", "payload": {"n": 1e999999}}',
        '{"kind": "' + "x" * 500_000 + '"}',
        '{"kind": "x", ' + ",".join(f'"k{n}": 1' for n in range(70_000)) + "}",
        '{"jobs": [' + ",".join(["1"] * 300_000) + "]}",
    ],
    ids=["brackets", "braces", "deep", "keys", "number", "payload number", "exponent", "name", "fields", "items"],
)
def test_json_that_is_made_to_hurt_is_refused_quickly(text: str, caller: httpx.Client, app: Holdfast) -> None:
    path = "/v1/jobs/batch" if text.startswith('{"jobs"') else "/v1/jobs"
    began = time.monotonic()
    answer = caller.post(path, content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413, 422)
    assert len(answer.content) < 2_000
    assert time.monotonic() - began < 5
    assert app.counts().total == 0


def test_large_bodies_one_after_the_other_take_no_more_memory(caller: httpx.Client) -> None:
    body = b'{"kind": "x", "payload": {"text": "' + b"x" * 900_000 + b'"}}'

    def send(times: int) -> int:
        for _ in range(times):
            answer = caller.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
        return getrusage(RUSAGE_SELF).ru_maxrss

    before = send(10)
    assert send(40) - before < 30_000


def test_paths_and_methods_that_are_not_there_are_told(caller: httpx.Client) -> None:
    problem(caller.get("/v2/jobs"), 404, "not-found")
    problem(caller.put("/v1/jobs"), 405, "method-not-allowed")
    problem(caller.request("BREW", "/v1/jobs"), 405, "method-not-allowed")


def test_a_store_that_is_gone_is_told_and_may_be_asked_again(app: Holdfast) -> None:
    with called(app) as caller:
        assert caller.get("/readyz").json()["status"] == "ready"
        assert isinstance(app.store, SqliteStore)
        app.store.close()
        for answer in (caller.get("/v1/jobs"), caller.post("/v1/jobs", json={"kind": "x"})):
            problem(answer, 503, "store-unavailable")
            assert answer.headers["retry-after"] == "1"
        problem(caller.post("/v1/claims", json={"worker": "w"}), 503, "store-unavailable")


def test_a_server_without_its_store_is_not_ready(app: Holdfast) -> None:
    with called(app) as caller:
        app.store.close()
        answer = caller.get("/readyz")
        assert answer.status_code == 503
        assert (answer.json()["status"], answer.json()["store"]) == ("not-ready", "unreachable")
        assert caller.get("/healthz").json() == {"status": "ok"}


def test_a_loop_that_rests_for_long_is_not_stuck() -> None:
    pulse, long_ago = Pulse(), time.monotonic() - STUCK - 1
    pulse.follow("upkeep", lambda: long_ago, rests=30.0)
    assert not pulse.stuck(pulse.ages())
    pulse.follow("upkeep", lambda: long_ago, rests=0.5)
    assert pulse.stuck(pulse.ages())


def test_what_goes_wrong_inside_is_told_without_what_was_sent(
    app: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        msg = "canary"
        raise RuntimeError(msg)

    with called(app) as caller:
        monkeypatch.setattr(app, "prepare", broken)
        monkeypatch.setattr(app.store, "insert", broken)
        answer = caller.post("/v1/jobs", json={"kind": "x", "payload": {"secret": "canary"}})
    problem(answer, 500, "internal")
    assert "canary" not in answer.text
    assert "RuntimeError" in caplog.text
    assert "canary" not in caplog.text


def test_the_description_is_whole(caller: httpx.Client) -> None:
    described = caller.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            assert route["summary"], (method, path)
            assert route["description"], (method, path)
            good = [status for status in route["responses"] if status.startswith("2")]
            assert good, (method, path)
            assert all(each.get("description") for each in route.get("parameters", ()) if each["in"] == "query"), path
            for body in route.get("requestBody", {}).get("content", {}).values():
                shape = body["schema"].get("$ref", "").rpartition("/")[2]
                assert "example" in body or described["components"]["schemas"][shape]["examples"], (method, path)
            if path.startswith("/v1/"):
                assert {"401", "403", "422", "429", "503"} <= set(route["responses"]), (method, path)
                assert route["responses"]["422"]["content"].keys() == {"application/problem+json"}
    named = set(json.dumps(described).split("#/components/schemas/")[1:])
    missing = {each.partition('"')[0] for each in named} - described["components"]["schemas"].keys()
    assert not missing
