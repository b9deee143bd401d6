"""A worker in another language: the Node example as a real process against a real server."""

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast, Job
from holdfast.remote import Client
from holdfast.runtime.upkeep import reap
from tests.server.loopback import serving
from tests.servers import until

WORKER = Path(__file__).parents[2] / "examples" / "node_worker" / "worker.mjs"
NODE = shutil.which("node")
LONG = 30.0

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as opened:
        yield opened


@contextmanager
def working(url: str, folder: Path, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the worker beside the test."""
    assert NODE is not None
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    settings = {"HOLDFAST_SERVER": url, "LEASE": "1", "WAIT": "5", "CONCURRENCY": "3", **environment}
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen([NODE, str(WORKER)], env=kept | settings, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(folder: Path) -> list[str]:
    return (folder / "out").read_text().splitlines()


def begun(folder: Path, id_: object) -> bool:
    return any(str(id_) in line and line.endswith("begun") for line in lines(folder))


def ended(app: Holdfast) -> list[Job[object]]:
    found = app.find(limit=1000)
    return found if all(job.record.finished_at for job in found) else []


def test_twenty_jobs_one_of_which_fails_and_one_of_which_is_lost(app: Holdfast, tmp_path: Path) -> None:
    with serving(app) as url, Client(url) as client:
        sizes = [client.prepare("resize", {"width": 100 * n, "height": 50 * n, "longest": 100}) for n in range(1, 11)]
        texts = [client.prepare("checksum", {"text": str(n)}) for n in range(8)]
        stored = client.enqueue_many([*sizes, *texts])
        failing = client.enqueue("resize", {"width": 0, "height": 1, "longest": 1})
        with working(url, tmp_path):
            slow = client.enqueue("render", {"seconds": 3.0})
            until(lambda: begun(tmp_path, slow.id), "the slow job runs", LONG)
            until(lambda: app.counts().unfinished == 1, "nothing else is in its worker's hands", LONG)
            owner = app.get(slow.id).record.lease_owner
            assert owner is not None
            app.store.abandon(owner)  # as if its worker had been out of reach for as long as the lease
            assert reap(app.store, app.settings) >= 1
            until(lambda: ended(app), "all jobs have ended", LONG)
        results = {job.id: client.result(job.id, 1) for job in stored}
        assert [results[job.id] for job in stored[:10]] == [{"width": 100, "height": 50}] * 10
        assert [results[job.id] for job in stored[10:]] == [hashlib.sha256(b"%d" % n).hexdigest() for n in range(8)]
        dead = client.get(failing.id)
        assert dead.failure is not None
        assert (dead.state, dead.cause, dead.attempt) == ("dead", "rejected", 1)
        assert (dead.failure.code, dead.failure.message) == ("bad_size", "sizes are above zero")
        assert client.result(slow.id, 1) == "rendered at attempt 2"
        assert f"job {slow.id} render attempt 1: not handed in: the lease is lost" in lines(tmp_path)
        assert app.counts()["succeeded"] == 19


def test_a_lease_is_kept_for_longer_than_it_lasts_and_a_cancelled_job_is_given_up(
    app: Holdfast, tmp_path: Path
) -> None:
    with serving(app) as url, Client(url) as client, working(url, tmp_path):
        long, cancelled = client.enqueue("render", {"seconds": 2.5}), client.enqueue("render", {"seconds": 60})
        until(lambda: begun(tmp_path, cancelled.id), "the job runs", LONG)
        client.cancel(cancelled.id)
        until(lambda: app.get(cancelled.id).state == "cancelled", "the job is cancelled", LONG)
        until(lambda: reap(app.store, app.settings) or app.get(long.id).state == "succeeded", "the job ends", LONG)
        assert client.result(long.id, LONG) == "rendered at attempt 1"


def test_sigterm_lets_a_job_finish_and_a_second_one_gives_it_back(app: Holdfast, tmp_path: Path) -> None:
    with serving(app) as url, Client(url) as client:
        with working(url, tmp_path) as worker:
            job = client.enqueue("render", {"seconds": 1.0})
            until(lambda: begun(tmp_path, job.id), "the job runs", LONG)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(LONG) == 0
            assert client.get(job.id).state == "succeeded"
        with working(url, tmp_path) as worker:
            job = client.enqueue("render", {"seconds": 60})
            until(lambda: begun(tmp_path, job.id), "the job runs", LONG)
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGINT)
            assert worker.wait(LONG) == 0
            assert (client.get(job.id).state, client.get(job.id).attempt) == ("retrying", 0)


def test_a_worker_hands_in_when_its_server_is_back(app: Holdfast, tmp_path: Path) -> None:
    with ExitStack() as first:
        url = first.enter_context(serving(app))
        with Client(url) as client:
            job = client.enqueue("render", {"seconds": 1.0})
        with working(url, tmp_path, LEASE="20", WAIT="1"):
            until(lambda: begun(tmp_path, job.id), "the job runs", LONG)
            first.close()
            until(lambda: "waiting for the server" in (tmp_path / "out").read_text(), "the worker notices", LONG)
            with serving(app, port=int(url.rpartition(":")[2])):
                until(lambda: app.get(job.id).state == "succeeded", "the result is handed in", LONG)
    assert app.get(job.id).attempt == 1
