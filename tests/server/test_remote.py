"""Holdfast by HTTP: the client, sync and async, and its worker, against real servers on real sockets."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from holdfast import (
    BadInput,
    BadPayload,
    CommitUnknown,
    Context,
    Holdfast,
    IllegalMove,
    JobCancelled,
    JobDead,
    JobNotFound,
    KeyConflict,
    Permanent,
    ResultTimeout,
    Snooze,
    StoreUnavailable,
    UnknownKind,
)
from holdfast.remote import AsyncClient, Claimed, Client, NotAllowed, Refused, RemoteWorker, Task
from holdfast.remote.errors import refusal
from holdfast.runtime.upkeep import reap
from tests.server.loopback import serving
from tests.servers import free_port, until
from tests.workers import Working

LONG = 20.0
ABSENT = "01900000-0000-7000-8000-000000000000"
EXAMPLE = Path(__file__).parents[2] / "examples" / "http_worker.py"


class Photo(BaseModel):
    id: int
    taken: datetime | None = None


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """An application without kinds of its own: the server takes any."""
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as opened:
        yield opened


@pytest.fixture
def client(app: Holdfast) -> Iterator[Client]:
    with serving(app) as url, Client(url) as opened:
        yield opened


class Line:
    """A line to a server that breaks when told to: after the server has begun to answer, or before it has heard."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose = 0
        """How many answers to lose."""
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            threading.Thread(target=_pump, args=(near, far), daemon=True).start()
            try:
                while answer := far.recv(65536):
                    if self.lose:
                        self.lose -= 1
                        self.lost += 1
                        return
                    near.sendall(answer)
            except OSError:
                return
            finally:
                _hang_up(near)
                _hang_up(far)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes whoever reads from it, which closing does not


def _pump(near: socket.socket, far: socket.socket) -> None:
    try:
        while data := near.recv(65536):
            far.sendall(data)
    except OSError:
        return


@contextmanager
def line_to(url: str) -> Iterator[Line]:
    line = Line(int(url.rpartition(":")[2]))
    try:
        yield line
    finally:
        line.close()


def states(app: Holdfast) -> list[str]:
    return [job.state for job in app.find(limit=1000)]


# What callers ask


def test_a_job_is_enqueued_and_read_as_it_was_asked_for(client: Client) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    job = client.enqueue(
        "resize", Photo(id=7), queue="photos", tenant="acme", priority=5, key="photo:7", run_at=at, max_attempts=3
    )
    read = client.get(job.id, payload=True)
    assert isinstance(job.id, UUID)
    assert (read.kind, read.queue, read.tenant, read.priority) == ("resize", "photos", "acme", 5)
    assert (read.key, read.max_attempts, read.available_at, read.state) == ("photo:7", 3, at, "queued")
    assert read.payload == {"id": 7, "taken": None}
    assert (job.duplicate, job.payload, job.failure, job.finished_at) == (False, None, None, None)
    later = client.enqueue("resize", run_after=timedelta(minutes=10), group="album-1")
    assert later.fields["group"] == "album-1"
    assert later.available_at - later.created_at == timedelta(minutes=10)
    assert client.get(str(later.id)).fields["trigger"] == "manual"


def test_a_key_gives_the_first_job_again_or_a_conflict(client: Client) -> None:
    first = client.enqueue("resize", {"id": 7}, key="photo:7")
    again = client.enqueue("resize", {"id": 7}, key="photo:7")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(KeyConflict, match="photo:7"):
        client.enqueue("resize", {"id": 8}, key="photo:7")
    assert client.enqueue("resize").id != client.enqueue("resize").id


def test_many_jobs_are_stored_together_or_not_at_all(client: Client, app: Holdfast) -> None:
    jobs = [client.prepare("resize", {"id": n}, key=f"photo:{n}") for n in range(300)]
    assert len({job.id for job in client.enqueue_many(jobs)}) == 300
    assert all(job.duplicate for job in client.enqueue_many(jobs))
    with pytest.raises(KeyConflict):
        client.enqueue_many([client.prepare("resize", {"id": -1}), client.prepare("resize", {"id": -1}, key="photo:0")])
    assert app.counts().total == 300
    assert client.enqueue_many([]) == []
    with pytest.raises(BadInput, match="At most 1,000 jobs"):
        client.enqueue_many(jobs * 4)
    with pytest.raises(BadInput, match="takes prepared jobs"):
        client.enqueue_many([{"kind": "resize"}])  # type: ignore[list-item]


def test_finding_goes_through_all_pages(client: Client) -> None:
    client.enqueue_many(
        [client.prepare("resize", {"id": n}, queue="even" if n % 2 == 0 else "odd") for n in range(450)]
    )
    assert len({job.id for job in client.find()}) == 450
    assert len(list(client.find(queue="odd"))) == 225
    assert len(list(client.find(limit=230))) == 230
    assert list(client.find(limit=0)) == []
    assert list(client.find(state="dead")) == []


def test_a_result_is_waited_for(app: Holdfast, working: Working) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    @app.job
    def reject() -> None:
        raise Permanent(code="no")

    with serving(app) as url, Client(url) as client, working(app):
        assert client.result(client.enqueue("add", {"a": 2, "b": 3}), LONG) == 5
        with pytest.raises(JobDead, match=r"is dead \(rejected\): no"):
            client.result(client.enqueue("reject").id, LONG)
        waiting = client.enqueue("add", {"a": 2, "b": 3}, run_after=60)
        with pytest.raises(ResultTimeout, match="is still queued after"):
            client.result(waiting.id, 0.2)
        client.cancel(waiting.id)
        with pytest.raises(JobCancelled):
            client.result(waiting.id, LONG)


def test_operators_cancel_redrive_and_signal(app: Holdfast, client: Client, working: Working) -> None:
    dead = [client.enqueue("resize", {"id": n}, queue="photos") for n in range(5)]
    for claimed in client.claim("w", queues=["photos"], limit=5):
        assert client.fail(claimed, "broken", "no lens", retryable=False) == "dead"
    assert client.redrive(dead[0].id).state == "queued"
    assert client.redrive(kind="resize", error_code="broken") == 4
    assert client.redrive(kind="resize") == 0
    assert client.cancel(dead[0].id).state == "cancelled"
    assert client.cancel(dead[0].id).state == "cancelled"
    with pytest.raises(IllegalMove) as refused:
        client.signal(dead[0].id, "approval")
    assert refused.value.reason == "no-op-terminal"

    @app.workflow
    async def approve(ctx: Context) -> Any:
        return await ctx.wait_for("approval", timeout=60)

    job = approve.enqueue()
    client.signal(job.id, "approval", {"by": "ada"})
    with working(app):
        assert job.result(LONG) == {"by": "ada"}


def test_bad_input_is_told_as_without_a_server(app: Holdfast) -> None:
    @app.job
    def resize(photo: Photo) -> None: ...

    with serving(app) as url, Client(url) as client:
        with pytest.raises(BadPayload, match="resize: field 'id'"):
            client.enqueue("resize", {"id": "canary"})
        with pytest.raises(UnknownKind, match="No handler is registered"):
            client.enqueue("rotate")
        with pytest.raises(JobNotFound, match=ABSENT):
            client.get(ABSENT)
        with pytest.raises(BadInput, match="is not a job id"):
            client.get("7")
        with pytest.raises(BadPayload, match="nan"):
            client.enqueue("resize", {"id": float("nan")})
        with pytest.raises(BadInput, match="There is no option 'colour'"):
            client.enqueue("resize", {"id": 1}, colour="red")  # type: ignore[call-arg]
        with pytest.raises(BadInput, match="run_at must be a datetime with a time zone"):
            client.enqueue("resize", {"id": 1}, run_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(BadInput, match="not valid"):
            list(client.find(state="lost"))
        with pytest.raises(BadPayload, match="larger than"):
            client.enqueue("resize", {"id": 1, "note": "x" * 300_000})
        with pytest.raises(BadPayload, match="larger than"):
            client.enqueue("resize", {"id": 1, "note": "x" * 3_000_000})
    assert app.counts().total == 0


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://here", "http://", "http://user:word@here", "http://here/?a=1", None]
)
def test_an_address_that_is_none_is_refused_at_once(url: Any) -> None:
    with pytest.raises(BadInput, match="server's address"):
        Client(url)


def test_a_token_lets_its_holder_do_what_it_is_for_and_is_never_shown(app: Holdfast) -> None:
    reader, _ = app.tokens.create("reader", ["read"])
    worker, _ = app.tokens.create("worker", ["work", "enqueue"])
    with serving(app, auth=True) as url:
        with Client(url) as nobody, pytest.raises(NotAllowed, match="asks for a token") as refused:
            nobody.enqueue("resize")
        assert (refused.value.status, refused.value.code) == (401, "no-token")
        with Client(url, token="hf_wrong_token") as stranger, pytest.raises(NotAllowed, match="not valid"):
            stranger.enqueue("resize")
        with Client(url, token=reader) as client:
            assert list(client.find()) == []
            with pytest.raises(NotAllowed, match="lacks the scope 'enqueue'"):
                client.enqueue("resize")
            assert reader not in f"{client!r} {vars(client)} {client.prepare('a')}"
        with Client(url, token=worker) as client:
            client.enqueue("resize")
            (job,) = client.claim("w")
            assert job.token not in repr(job)
    with pytest.raises(BadInput, match="A token is text"):
        Client(url, token="two\nlines")


# What goes wrong on the way


def test_an_answer_that_is_lost_is_asked_for_again_and_the_job_is_stored_once(app: Holdfast) -> None:
    with serving(app) as url, line_to(url) as line, Client(line.url) as client:
        line.lose = 3
        job = client.enqueue("resize", {"id": 7})
        assert line.lost == 3
        assert (job.duplicate, app.counts().total) == (False, 1)
        line.lose = 2
        assert len(client.enqueue_many([client.prepare("resize", {"id": n}) for n in range(10)])) == 10
        assert app.counts().total == 11
        line.lose = 1
        client.cancel(job.id)
        line.lose = 1
        assert client.redrive(kind="resize") == 0


def test_a_settlement_whose_answer_is_lost_counts_once(app: Holdfast) -> None:
    with serving(app) as url, line_to(url) as line, Client(line.url) as client:
        client.enqueue("resize")
        (job,) = client.claim("w")
        line.lose = 2
        assert client.checkpoint(job, "fetch", {"bytes": 5}) == "running"
        line.lose = 2
        assert client.complete(job, "done") == "succeeded"
        assert client.result(job.id) == "done"
        assert [step.result for step in app.steps(job.id)] == ['{"bytes":5}']


def test_a_signal_whose_answer_is_lost_is_not_sent_twice(app: Holdfast) -> None:
    with serving(app) as url, line_to(url) as line, Client(line.url) as client:
        job = client.enqueue("resize")
        line.lose = 1
        with pytest.raises(CommitUnknown, match="done whole or not at all"):
            client.signal(job.id, "approval")
        assert len(app.signals(job.id)) == 1


def test_a_server_that_is_not_there_yet_is_waited_for_a_while(app: Holdfast) -> None:
    port = free_port()
    answered: list[Any] = []
    with Client(f"http://127.0.0.1:{port}") as client, ExitStack() as later:
        asking = threading.Thread(target=lambda: answered.append(client.enqueue("resize")))
        asking.start()
        later.enter_context(serving(app, port=port))
        asking.join(LONG)
        assert len(answered) == 1
    assert app.counts().total == 1


def test_a_server_that_stays_away_is_told_in_one_sentence() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, tries=2) as client:
        with pytest.raises(StoreUnavailable) as gone:
            client.enqueue("resize")
        assert (
            str(gone.value)
            == f"The server at {url} does not answer (ConnectError); is it running there? Nothing was changed."
        )
        with pytest.raises(StoreUnavailable):
            list(client.find())


class _Page(BaseHTTPRequestHandler):
    """A web server that is not Holdfast's."""

    busy = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        status = {"/v1/jobs": 200, f"/v1/jobs/{ABSENT}": 302}.get(self.path.partition("?")[0], 418)
        if type(self).busy:
            type(self).busy -= 1
            status = 503
        body = b"<h1>hello</h1>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 302:
            self.send_header("Location", "/elsewhere")
        if status == 503:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def page() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(LONG)


def test_what_is_no_holdfast_server_is_told_so(page: str) -> None:
    with Client(page) as client:
        with pytest.raises(BadInput, match="is not a Holdfast server"):
            client.enqueue("resize")
        with pytest.raises(Refused, match="status 302 and gave no reason"):  # a token goes nowhere else
            client.get(ABSENT)
        with pytest.raises(Refused, match="status 418"):
            client.cancel(ABSENT)


def test_a_busy_server_is_asked_again_only_so_often(page: str) -> None:
    with Client(page, tries=3) as client:
        _Page.busy = 2
        with pytest.raises(BadInput, match="is not a Holdfast server"):  # the third answer is the page itself
            client.enqueue("resize")
        assert _Page.busy == 0
        _Page.busy = 10
        with pytest.raises(StoreUnavailable, match="status 503"):
            client.enqueue("resize")
        assert _Page.busy == 7
        _Page.busy = 0


def test_every_problem_is_an_error_of_its_own_kind() -> None:
    told = {"detail": "A sentence."}
    cases: list[tuple[int, dict[str, Any] | None, type[Exception]]] = [
        (404, {"code": "job-not-found", **told}, JobNotFound),
        (409, {"code": "key-conflict", **told}, KeyConflict),
        (409, {"code": "stale-token", "reason": "already-claimed", **told}, IllegalMove),
        (503, {"code": "commit-unknown", **told}, CommitUnknown),
        (503, {"code": "store-unavailable", **told}, StoreUnavailable),
        (413, {"code": "too-large", **told}, BadPayload),
        (422, {"code": "bad-request", **told}, BadInput),
        (403, {"code": "tenant-bound", **told}, NotAllowed),
        (500, {"code": "internal", **told}, Refused),
        (500, {"code": "illegal-move", **told}, Refused),
        (500, None, Refused),
    ]
    assert [type(refusal(status, body)) for status, body, _ in cases] == [kind for _, _, kind in cases]


# What workers say


def test_a_worker_claims_beats_records_and_completes(client: Client, app: Holdfast) -> None:
    client.enqueue("resize", {"id": 7}, queue="photos")
    assert client.claim("w", queues=["other"]) == []
    (job,) = client.claim("w", queues=["photos"], lease=5)
    assert (job.kind, job.payload, job.attempt, job.steps) == ("resize", {"id": 7}, 1, {})
    beat = client.heartbeat(job, lease=60, progress=0.5, note="halfway")
    assert beat.expires_at > job.expires_at
    assert not beat.cancel_requested
    assert app.get(job.id).progress == (0.5, "halfway")
    client.checkpoint(job, "fetch", [1, 2])
    assert client.release(job) == "retrying"
    (again,) = client.claim("w")
    assert again.steps == {"fetch": [1, 2]}
    with pytest.raises(IllegalMove) as refused:
        client.complete(job)
    assert refused.value.reason == "already-claimed"
    assert client.complete(again, {"width": 640}) == "succeeded"
    with pytest.raises(IllegalMove) as refused:
        client.fail(job, "late")
    assert refused.value.reason == "no-op-terminal"
    assert client.result(job.id) == {"width": 640}


def test_claims_wait_for_what_comes(client: Client) -> None:
    found: list[Claimed] = []
    waiting = threading.Thread(target=lambda: found.append(next(client.claims("w", wait=20))))
    waiting.start()
    job = client.enqueue("resize")
    waiting.join(LONG)
    assert [each.id for each in found] == [job.id]


@contextmanager
def working(worker: RemoteWorker, **options: Any) -> Iterator[RemoteWorker]:
    """Run a worker in a thread of the test."""
    thread = threading.Thread(target=lambda: worker.run(**options))
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        thread.join(LONG)
        assert not thread.is_alive(), "the worker did not stop"


def test_a_worker_runs_what_it_has_handlers_for(
    client: Client, app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @client.handles("add")
    def add(task: Task) -> int:
        return int(task.payload["a"] + task.payload["b"])

    @client.handles("later")
    async def later(task: Task) -> str:
        await asyncio.sleep(0)
        return f"{task.kind} {task.attempt}"

    @client.handles("break")
    def broken(task: Task) -> None:
        raise TimeoutError(task.payload["text"])

    @client.handles("reject")
    def reject(task: Task) -> None:
        msg = "no such user"
        raise Permanent(msg, code="nobody")

    @client.handles("snooze")
    def snooze(task: Task) -> None:
        raise Snooze(60)

    @client.handles("odd")
    def odd(task: Task) -> Any:
        return object()

    sums = client.enqueue_many([client.prepare("add", {"a": n, "b": n}) for n in range(20)])
    others = {
        kind: client.enqueue(kind, {"text": "canary"}) for kind in ("later", "break", "reject", "snooze", "odd", "else")
    }
    with caplog.at_level(logging.WARNING, "holdfast.remote"):
        client.work(until_idle=True, concurrency=4)
    assert [client.result(job) for job in sums] == [2 * n for n in range(20)]
    now = {kind: client.get(job.id) for kind, job in others.items()}
    assert client.result(others["later"]) == "later 1"
    assert {kind: (job.state, job.failure and job.failure.code, job.attempt) for kind, job in now.items()} == {
        "later": ("succeeded", None, 1),
        "break": ("retrying", "timeout_error", 1),
        "reject": ("dead", "nobody", 1),
        "snooze": ("retrying", None, 0),
        "odd": ("dead", "bad_result", 1),
        "else": ("retrying", None, 0),
    }
    failure = now["break"].failure
    assert failure is not None
    assert failure.message.startswith("TimeoutError raised in broken, line ")
    assert "canary" not in json.dumps(dict(now["break"].fields))
    (attempt,) = app.attempts(others["break"].id)
    assert "TimeoutError" in (attempt.traceback or "")
    assert caplog.messages == [f"job {others['else'].id} is put off: no handler for 'else' here"]


def test_a_worker_keeps_a_lease_for_as_long_as_its_task_takes(client: Client, app: Holdfast) -> None:
    go = threading.Event()

    @client.handles("slow")
    def slow(task: Task) -> int:
        task.progress(0.25, "a quarter")
        go.wait(LONG)
        return task.attempt

    job = client.enqueue("slow")
    with working(client.worker(lease=1, wait=1)):
        until(lambda: app.get(job.id).progress, "a heartbeat has come")
        first = app.get(job.id).record.lease_expires_at or 0
        until(lambda: (app.get(job.id).record.lease_expires_at or 0) > first + 1_000_000, "it is renewed")
        assert reap(app.store, app.settings) == 0
        go.set()
        assert client.result(job, LONG) == 1


def test_a_cancelled_task_hears_of_it_and_ends(client: Client) -> None:
    begun = threading.Event()

    @client.handles("slow")
    def slow(task: Task) -> None:
        begun.set()
        until(lambda: task.cancelled, "the task is cancelled")
        task.check()

    job = client.enqueue("slow")
    with working(client.worker(lease=1, wait=1)):
        assert begun.wait(LONG)
        client.cancel(job.id)
        with pytest.raises(JobCancelled):
            client.result(job, LONG)


def test_what_comes_of_a_lost_task_does_not_count(
    client: Client, app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    @client.handles("slow")
    def slow(task: Task) -> int:
        seen.append(task.attempt)
        if task.attempt == 1:
            until(lambda: task.lost, "the lease is lost")
        return task.attempt

    job = client.enqueue("slow")
    with caplog.at_level(logging.WARNING, "holdfast.remote"), working(client.worker(lease=2, wait=1)) as worker:
        until(lambda: seen, "the task runs")
        app.store.abandon(worker.name)
        reap(app.store, app.settings)
        assert client.result(job, LONG) == 2
    assert f"job {job.id} was lost: another worker may have it by now" in caplog.messages


def test_a_lost_job_that_comes_again_while_it_still_runs_keeps_its_new_lease(client: Client, app: Holdfast) -> None:
    ended, go = threading.Event(), threading.Event()

    @client.handles("slow")
    def slow(task: Task) -> int:
        if task.attempt == 1:
            until(lambda: task.lost, "the lease is lost")
            ended.set()
        else:
            go.wait(LONG)
        return task.attempt

    job = client.enqueue("slow")
    with working(client.worker(lease=1, wait=1, concurrency=2)) as worker:
        until(lambda: app.get(job.id).state == "running", "the task runs")
        app.store.abandon(worker.name)
        reap(app.store, app.settings)
        assert ended.wait(LONG)
        until(lambda: app.get(job.id).state == "running", "it runs again")
        first = app.get(job.id).record.lease_expires_at or 0
        until(lambda: (app.get(job.id).record.lease_expires_at or 0) > first + 1_000_000, "it is renewed")
        go.set()
        assert client.result(job, LONG) == 2


def test_a_worker_that_may_not_work_ends_and_says_why(app: Holdfast) -> None:
    reader, _ = app.tokens.create("reader", ["read"])
    with serving(app, auth=True) as url, Client(url, token=reader) as client:
        client.handles("a")(lambda _: None)
        with pytest.raises(NotAllowed, match="lacks the scope 'work'"):
            client.work()


def test_a_stopped_worker_gives_back_what_does_not_end(client: Client) -> None:
    begun, go = threading.Event(), threading.Event()

    @client.handles("slow")
    def slow(task: Task) -> None:
        begun.set()
        go.wait(LONG)

    job = client.enqueue("slow")
    worker = client.worker(grace=0.2, wait=1)
    with working(worker):
        assert begun.wait(LONG)
    assert (client.get(job.id).state, client.get(job.id).attempt) == ("retrying", 0)
    go.set()


def test_what_is_done_while_the_server_is_away_is_handed_in_when_it_is_back(app: Holdfast) -> None:
    begun, go = threading.Event(), threading.Event()
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", tries=2) as client:

        @client.handles("slow")
        def slow(task: Task) -> str:
            begun.set()
            go.wait(LONG)
            return "done"

        with ExitStack() as first:
            first.enter_context(serving(app, port=port))
            job = client.enqueue("slow")
            with working(client.worker(lease=30, wait=1)):
                assert begun.wait(LONG)
                first.close()
                go.set()
                with serving(app, port=port):
                    assert client.result(job, LONG) == "done"


def test_a_worker_that_cannot_work_says_so_at_once(client: Client) -> None:
    with pytest.raises(BadInput, match="needs handlers"):
        client.work()
    client.handles("a")(lambda _: None)
    with pytest.raises(BadInput, match="concurrency is a whole number"):
        client.work(concurrency=0)


# The async twin


def test_the_async_client_says_the_same(app: Holdfast) -> None:
    async def through(url: str) -> None:
        async with AsyncClient(url) as client:
            job = await client.enqueue("resize", {"id": 7}, queue="photos", key="photo:7")
            assert (await client.enqueue("resize", {"id": 7}, key="photo:7")).duplicate
            await client.enqueue_many([client.prepare("resize", {"id": n}) for n in range(250)])
            assert len([each async for each in client.find(kind="resize")]) == 251
            assert len([each async for each in client.find(limit=7)]) == 7
            claimed = await anext(client.claims("w", queues=["photos"]))
            waiting = asyncio.create_task(client.result(job, LONG))
            assert not (await client.heartbeat(claimed)).cancel_requested
            assert await client.checkpoint(claimed, "fetch", 5) == "running"
            assert await client.complete(claimed, [1]) == "succeeded"
            assert await waiting == [1]
            (other,) = await client.claim("w")
            assert await client.fail(other, "broken", retryable=False) == "dead"
            assert (await client.redrive(other.id)).state == "queued"
            (other,) = await client.claim("w")
            assert await client.release(other, 60) == "retrying"
            assert (await client.signal(other.id, "go")).id == other.id
            assert (await client.cancel(other.id)).state == "cancelled"
            assert await client.redrive(kind="resize") == 0
            assert (await client.get(job.id, payload=True)).payload == {"id": 7}
            with pytest.raises(ResultTimeout):
                await client.result((await client.enqueue("resize")).id, 0.1)
            with pytest.raises(JobNotFound):
                await client.get(ABSENT)

    with serving(app) as url:
        asyncio.run(through(url))


def test_the_async_client_asks_again_as_well(app: Holdfast) -> None:
    async def through(line: Line) -> None:
        async with AsyncClient(line.url) as client:
            line.lose = 2
            await client.enqueue("resize")
        async with AsyncClient(f"http://127.0.0.1:{free_port()}", tries=2) as client:
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await client.enqueue("resize")

    with serving(app) as url, line_to(url) as line:
        asyncio.run(through(line))
    assert app.counts().total == 1


def test_a_client_that_was_closed_says_so() -> None:
    client = Client("http://127.0.0.1:1")
    client.close()
    with pytest.raises(StoreUnavailable, match="The client is closed"):
        client.enqueue("resize")


def test_both_clients_can_do_the_same() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}

    assert calls(Client) - calls(AsyncClient) == {"handles", "worker", "work", "close"}
    assert calls(AsyncClient) - calls(Client) == {"aclose"}


# As a user meets it


def test_without_httpx_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpx'] = None; import holdfast.remote"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == "ModuleNotFoundError: holdfast.remote needs httpx; install it with: pip install 'holdfast[remote]'."


@pytest.fixture
def example(app: Holdfast) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Give a way to start the example against a server."""
    started: list[subprocess.Popen[str]] = []
    with serving(app) as url:

        def start(*arguments: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
                env={**os.environ, "HOLDFAST_SERVER": url},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()


def test_the_example_runs_its_jobs_and_ends(example: Callable[..., "subprocess.Popen[str]"]) -> None:
    out, err = example("--until-idle").communicate(timeout=LONG)
    assert err == ""
    assert out.splitlines() == [
        "letter.txt succeeded {'words': 4}",
        "minutes.txt succeeded {'words': 4}",
        "photo.raw dead unsupported_format",
    ]


def test_the_example_ends_by_sigterm(app: Holdfast, example: Callable[..., "subprocess.Popen[str]"]) -> None:
    process = example()
    until(lambda: app.counts()["succeeded"] == 2 and app.counts()["dead"] == 1, "its jobs have ended")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=5)  # a wait for work does not hold it up
    assert (process.returncode, err) == (0, "")
    assert out.count("\n") == 3
