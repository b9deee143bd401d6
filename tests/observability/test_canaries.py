"""S33: canaries planted in payloads, exceptions, headers and URLs never come out where nobody asked for them.

Real processes at their most talkative: workers that log everything, alone and several, as text and as JSON; a server
that is asked badly; and every command that lists.
"""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import BadPayload, Holdfast, Retry
from tests.observability.scene import write_application
from tests.servers import free_port
from tests.surfaces.processes import output, run, started, until

PAYLOAD, HEADER, QUERY, WORD = "c4n4ryPAYLOAD", "c4n4ryHEADER", "c4n4ryQUERY", "c4n4ryWORD"
ALL = (PAYLOAD, HEADER, QUERY, WORD, "c4n4ry")


def clean(text: str) -> bool:
    """Tell whether no canary came out."""
    return not any(canary in text for canary in ALL)


def plant(client: Holdfast) -> None:
    """Enqueue jobs that carry canaries, and whose handlers raise them."""

    @client.job(queue="mail", retry=Retry.fixed(0, retries=1))
    def greet(name: str) -> None:
        raise NotImplementedError

    @client.job(retry=Retry.fixed(0, retries=0))
    def add(a: str, b: str) -> None:
        raise NotImplementedError

    @client.job(run_in="process", retry=Retry.fixed(0, retries=0))
    def apart(name: str) -> None:
        raise NotImplementedError

    greet.using(tenant="acme").enqueue(PAYLOAD)
    add.enqueue(PAYLOAD, PAYLOAD)
    apart.enqueue(PAYLOAD)


@pytest.fixture
def url(postgres_url: str) -> str:
    """Give a store whose URL has a password (which this server does not ask for)."""
    scheme, _, rest = postgres_url.partition("://")
    person, _, place = rest.partition("@")
    return f"{scheme}://{person.partition(':')[0]}:{WORD}@{place}"


@pytest.mark.parametrize(
    "words",
    [("--log-level", "debug"), ("--log-level", "debug", "--log-json"), ("--log-level", "debug", "--processes", "2")],
    ids=["text", "json", "several"],
)
def test_workers_and_lists_tell_no_canary(tmp_path: Path, url: str, words: tuple[str, ...]) -> None:
    target = write_application(tmp_path)
    with closing(Holdfast(url, events=True)) as client:
        plant(client)
        done = run("worker", target, "--until-idle", "--metrics", "0", *words, cwd=tmp_path, SHOP_URL=url, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "attempt 1 failed" in done.stderr
        assert clean(done.stdout + done.stderr)
        assert client.counts()["dead"] == 3
        assert clean("".join(event.body for event in client.store.events(0, 1_000)))
        assert clean("".join(str(job.failure) for job in client.find()))
        for job in client.find():
            assert clean(str(client.explain(job.id)))
    for command in (("jobs", "list"), ("dead", "list"), ("queues", "list"), ("check",), ("jobs", "list", "--json")):
        listed = run(*command, "--url", url, cwd=tmp_path)
        assert listed.returncode == 0, listed.stderr
        assert clean(listed.stdout + listed.stderr)
    for each in json.loads(run("jobs", "list", "--json", "--url", url, cwd=tmp_path).stdout):
        one = run("jobs", "show", each["id"], "--url", url, cwd=tmp_path)
        assert one.returncode == 0
        assert clean(one.stdout + one.stderr)


def test_a_server_out_of_reach_is_told_without_its_password(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    away = f"postgresql://ada:{WORD}@127.0.0.1:{free_port()}/jobs"
    with started("worker", target, "--log-level", "debug", cwd=tmp_path, SHOP_URL=away) as worker:
        until(lambda: "Trying again" in output(tmp_path, "err"))
        worker.terminate()
        worker.wait(10)
    assert clean(output(tmp_path) + output(tmp_path, "err"))
    listed = run("jobs", "list", "--url", away, cwd=tmp_path, timeout=60)
    assert (listed.returncode, clean(listed.stdout + listed.stderr)) == (1, True)


def test_a_refused_payload_is_told_without_its_values() -> None:
    with closing(Holdfast("memory://")) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        with pytest.raises(BadPayload) as refused:
            app.enqueue("add", {"a": PAYLOAD, "b": 1})
        assert clean(str(refused.value))


def test_a_traceback_on_record_has_no_secret_that_redaction_knows() -> None:
    with closing(Holdfast("memory://")) as app:

        @app.job(retry=Retry.fixed(0, retries=0))
        def call(address: str) -> None:
            raise ConnectionError(f"cannot open {address}")

        job = call.enqueue(f"https://ada:{WORD}@example.org/?token={QUERY}")
        app.run_worker(until_idle=True)
        [attempt] = app.attempts(job.id)
        assert attempt.traceback is not None
        assert "ConnectionError: cannot open https://ada:[redacted]@example.org" in attempt.traceback
        assert clean(attempt.traceback)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    write_application(tmp_path)
    words = ("server", f"{tmp_path}/shop.py:app", "--port", "0", "--log-level", "debug")
    with started(*words, cwd=tmp_path) as process:
        yield until(lambda: _address(output(tmp_path)))
        process.terminate()
        process.wait(10)


def _address(text: str) -> str:
    return next((line.split()[2] for line in text.splitlines() if line.startswith("server at ")), "")


def test_the_server_logs_and_shows_no_canary(tmp_path: Path, server: str) -> None:
    bodies = []
    good = {"kind": "greet", "payload": {"name": PAYLOAD}, "queue": "mail"}
    for path, body in (
        (f"/v1/jobs?access_token={QUERY}", None),
        ("/v1/jobs", good),
        ("/v1/jobs", {"kind": "add", "payload": {"a": PAYLOAD, "b": []}}),
        ("/v1/jobs", {"kind": "add", "payload": {"a": 1, "b": 2}, "priority": PAYLOAD}),
        ("/v1/jobs", None),
        ("/metrics", None),
        ("/", None),
        ("/jobs", None),
        ("/dead", None),
    ):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {HEADER}", "Cookie": f"session={HEADER}"}
        asked = urllib.request.Request(server + path, data, {**headers, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                bodies.append((path, answer.status, answer.read().decode()))
        except urllib.error.HTTPError as error:
            bodies.append((path, error.code, error.read().decode()))
    assert all(status < 500 for _, status, _ in bodies), bodies
    for path, status, text in bodies:
        assert HEADER not in text, (path, status)
        assert QUERY not in text, (path, status)
        if not path.startswith("/v1") or status >= 400 or "access_token" in path:
            assert clean(text), (path, status, text)
    assert clean(output(tmp_path) + output(tmp_path, "err"))


def test_no_process_shows_a_password_in_its_arguments(tmp_path: Path, url: str) -> None:
    """The store's URL comes from the application or the environment: `ps` shows neither."""
    target = write_application(tmp_path)
    with started("worker", target, "--processes", "1", cwd=tmp_path, SHOP_URL=url) as parent:
        until(lambda: "worker " in output(tmp_path))
        shown = subprocess.run(
            ["ps", "--no-headers", "-o", "args", "--pid", str(parent.pid), "--ppid", str(parent.pid)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert len(shown.splitlines()) == 2
    assert clean(shown)
