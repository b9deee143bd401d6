"""`holdfast server` and the server of `holdfast dev`, as real processes."""

import re
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from tests.surfaces.processes import client, output, run, started, until, write_application

SERVER = re.compile(r"server at (http://\S+) serves")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def address(folder: Path) -> Callable[[], str]:
    """Look whether a server has said where it is."""

    def look() -> str:
        said = SERVER.search(output(folder))
        return said[1] if said else ""

    return look


def test_a_server_serves_until_it_is_told_to_stop(tmp_path: Path, store: str) -> None:
    with started("server", "--port", "0", "--url", store, cwd=tmp_path) as process:
        at = until(address(tmp_path))
        assert httpx.post(f"{at}/v1/jobs", json={"kind": "resize"}).status_code == 201
        assert httpx.get(f"{at}/readyz").json()["status"] == "ready"
        answers: list[httpx.Response] = []
        claim = {"worker": "w", "queues": ["other"], "wait": 30}
        waiting = threading.Thread(target=lambda: answers.append(httpx.post(f"{at}/v1/claims", json=claim, timeout=40)))
        waiting.start()
        until(lambda: "listening" in httpx.get(f"{at}/readyz").json()["loops"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        waiting.join(5)
        assert [answer.json() for answer in answers] == [{"jobs": []}]
    assert output(tmp_path, "err") == ""
    with closing(Holdfast(store)) as app:
        assert app.counts()["queued"] == 1


def test_a_server_of_an_application_validates_its_jobs(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    with started("server", target, "--port", "0", cwd=tmp_path):
        at = until(address(tmp_path))
        assert httpx.post(f"{at}/v1/jobs", json={"kind": "add", "payload": {"a": 1, "b": 2}}).status_code == 201
        assert httpx.post(f"{at}/v1/jobs", json={"kind": "add", "payload": {"a": 1}}).status_code == 422
        assert httpx.post(f"{at}/v1/jobs", json={"kind": "other"}).json()["code"] == "unknown-kind"


def test_a_server_that_asks_for_tokens_listens_anywhere(tmp_path: Path, store: str) -> None:
    with closing(Holdfast(store)) as app:
        secret, _ = app.tokens.create("ada", ["read"])
    with started("server", "--host", "0.0.0.0", "--port", "0", "--url", store, "--read-only", cwd=tmp_path) as process:
        port = until(address(tmp_path)).rpartition(":")[2]
        at = f"http://127.0.0.1:{port}"
        assert "whoever has a token" in output(tmp_path)
        assert secret not in output(tmp_path)
        assert httpx.get(f"{at}/v1/jobs").status_code == 401
        assert httpx.get(f"{at}/v1/jobs", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_a_server_that_would_be_open_to_a_network_is_refused(tmp_path: Path, store: str) -> None:
    for words, said in (
        (("--host", "0.0.0.0", "--no-auth"), "listens on this machine alone"),
        (("--host", "0.0.0.0"), "There is no token yet"),
        (("--auth",), "There is no token yet"),
    ):
        done = run("server", "--url", store, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.endswith(".\n")


def test_an_address_that_cannot_be_listened_on_is_told(tmp_path: Path, store: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        done = run("server", "--url", store, "--port", port, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"port {port} of 127.0.0.1" in done.stderr
    done = run("server", "--url", store, "--host", "nowhere.invalid", "--auth", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1


def test_a_server_without_its_packages_says_what_to_install(tmp_path: Path, store: str) -> None:
    (tmp_path / "fastapi.py").write_text("raise ModuleNotFoundError('No module named fastapi', name='fastapi')\n")
    done = run("server", "--url", store, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'holdfast[server]'" in done.stderr


def test_dev_serves_what_it_works_on_and_starts_both_again(tmp_path: Path) -> None:
    write_application(tmp_path, grace=1)
    with closing(client(tmp_path)) as app, started("dev", "shop:app", "--port", "0", cwd=tmp_path) as parent:
        at = until(address(tmp_path))
        stored = httpx.post(f"{at}/v1/jobs", json={"kind": "add", "payload": {"a": 1, "b": 2}}).json()
        ended = httpx.get(f"{at}/v1/jobs/{stored['id']}?wait=20&payload=true", timeout=30).json()
        assert (ended["state"], ended["result"]) == ("succeeded", 3)
        source = (tmp_path / "shop.py").read_text()
        (tmp_path / "shop.py").write_text(source.replace("return a + b", "return 42"))
        until(lambda: len(SERVER.findall(output(tmp_path))) > 1, within=20)
        again = SERVER.findall(output(tmp_path))[-1]
        assert httpx.get(f"{again}/healthz").status_code == 200
        assert app.enqueue("add", {"a": 1, "b": 2}).result(timeout=10) == 42
        parent.send_signal(signal.SIGINT)
        assert parent.wait(10) == 0
    assert "Traceback" not in output(tmp_path, "err")
