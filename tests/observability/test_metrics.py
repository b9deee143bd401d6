"""Metrics: what is counted, by what, and that it agrees with what is stored."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import BadInput, Holdfast, Permanent, Retry, Snooze
from holdfast.domain import lifecycle
from holdfast.domain.job import NewJob, Retention
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Claim
from holdfast.runtime import upkeep
from holdfast.runtime.telemetry.families import FAMILIES, RUN
from holdfast.runtime.telemetry.metrics import MOST_QUEUES
from holdfast.runtime.telemetry.serving import serve
from holdfast.runtime.telemetry.tally import Tally, counters, from_json, together
from holdfast.server.metrics import render
from tests.observability.scene import Samples, samples, scrape, value, write_application
from tests.surfaces.processes import kill, output, run, started, until
from tests.workers import LONG, Working


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with closing(Holdfast("memory://", upkeep=0.02)) as made:
        made.instrument(metrics=True)
        yield made


def shown(app: Holdfast) -> Samples:
    """Show the metrics as they are now, however fresh the last answer was."""
    app.telemetry._gauges._asked = -100.0
    return samples(render(app).decode())


def test_jobs_dead_letters_and_paused_queues_are_what_the_store_holds(app: Holdfast) -> None:
    @app.job(queue="mail")
    def refuse(n: int) -> None:
        raise Permanent("no", code="no")

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    for n in range(3):
        refuse.enqueue(n)
        add.enqueue(n, n)
    app.run_worker(until_idle=True)
    add.using(queue="slow").enqueue(1, 2)
    app.pause("slow")
    found = shown(app)
    for (queue, state), jobs in app.store.counts().items():
        assert value(found, "holdfast_jobs", queue=queue, state=state.value) == jobs
    assert value(found, "holdfast_dead_letter_jobs", queue="mail") == 3
    assert value(found, "holdfast_dead_letter_jobs", queue="default") == 0
    assert value(found, "holdfast_queue_paused", queue="slow") == 1
    assert value(found, "holdfast_queue_paused", queue="mail") == 0
    assert value(found, "holdfast_store_up") == 1


def test_the_oldest_due_age_grows_with_the_job_that_waits_longest(tmp_path: Path) -> None:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        add.enqueue(1, 2)

        def age() -> float:
            return value(shown(app), "holdfast_oldest_due_age_seconds", queue="default") or 0.0

        first = until(age)
        add.enqueue(3, 4)
        until(lambda: age() > first + 0.05)


def test_the_store_is_asked_once_in_a_while_however_often_metrics_are_shown(app: Holdfast) -> None:
    asked = []
    counts = app.store.counts
    app.store.counts = lambda: asked.append(1) or counts()  # type: ignore[method-assign,func-returns-value]
    for _ in range(50):
        render(app)
    assert len(asked) == 1


def test_a_store_out_of_reach_is_told_and_what_was_counted_is_still_shown(app: Holdfast) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, 2)
    app.store.close()
    found = shown(app)
    assert value(found, "holdfast_store_up") == 0
    assert value(found, "holdfast_jobs_enqueued_total", queue="default", kind="add") == 1
    assert not [name for name, _ in found if name == "holdfast_jobs"]


def test_attempts_are_counted_by_how_they_ended(app: Holdfast) -> None:
    @app.job(retry=Retry.fixed(0, retries=1))
    def fail(n: int) -> None:
        raise ValueError(n)

    @app.job
    def nap(n: int) -> None:
        if not napped:
            napped.append(n)
            raise Snooze(0)

    napped: list[int] = []
    fail.enqueue(1)
    nap.enqueue(1)
    app.run_worker(until_idle=True)
    found = shown(app)
    ended = {
        (dict(labels)["kind"], dict(labels)["outcome"]): count
        for (name, labels), count in found.items()
        if name == "holdfast_attempts_ended_total"
    }
    assert ended == {("fail", "failed"): 1, ("fail", "dead"): 1, ("nap", "snoozed"): 1, ("nap", "succeeded"): 1}
    for kind in ("fail", "nap"):
        labels = {"queue": "default", "kind": kind}
        assert value(found, "holdfast_attempts_started_total", **labels) == 2
        assert value(found, "holdfast_attempt_run_seconds_count", **labels) == 2
        assert value(found, "holdfast_attempt_wait_seconds_count", **labels) == 2


@pytest.mark.parametrize("mode", ["thread", "loop", "pipeline"])
def test_every_way_of_running_is_measured(app: Holdfast, mode: str) -> None:
    async def on_the_loop(n: int) -> int:
        return n

    match mode:
        case "thread":
            app.job(name="it")(_plain)
        case "loop":
            app.job(name="it")(on_the_loop)
        case _:
            app.pipeline("it", [_one, _two])
    app.enqueue("it", {"payload": {}} if mode == "pipeline" else {"n": 1})
    app.run_worker(until_idle=True)
    found = shown(app)
    labels = {"queue": "default", "kind": "it"}
    assert value(found, "holdfast_attempts_started_total", **labels) == 1
    assert value(found, "holdfast_attempt_run_seconds_count", **labels) == 1
    assert value(found, "holdfast_attempts_ended_total", **labels, outcome="succeeded") == 1


def _plain(n: int) -> int:
    return n


def _one(payload: dict[str, int]) -> int:
    return 1


def _two(payload: dict[str, int]) -> int:
    return 2


def test_a_delivery_is_counted_like_a_workers_attempt(app: Holdfast) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    assert app.process(app.envelope(add.enqueue(1, 2).id)) == "claimed"
    found = shown(app)
    assert value(found, "holdfast_attempts_ended_total", queue="default", kind="add", outcome="succeeded") == 1
    assert value(found, "holdfast_attempt_run_seconds_count", queue="default", kind="add") == 1


def test_duplicates_are_not_counted_as_enqueued(app: Holdfast) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    for _ in range(3):
        add.using(key="once").enqueue(1, 2)
    app.enqueue_many([add.prepare(n, n) for n in range(5)])
    assert value(shown(app), "holdfast_jobs_enqueued_total", queue="default", kind="add") == 6


def test_expired_leases_and_late_writes_are_counted(working: Working, tmp_path: Path) -> None:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db", lease=60)) as app:
        app.instrument(metrics=True)
        go = threading.Event()

        @app.job
        def hold(n: int) -> int:
            go.wait(LONG)
            return n

        hold.enqueue(1)
        with working(app) as service:
            until(lambda: service.busy == 1)
            assert value(shown(app), "holdfast_worker_slots_in_use") == 1
            assert value(shown(app), "holdfast_worker_slots") == service.slots == 20
            app.store.abandon(service.id)
            assert upkeep.reap(app.store, app.settings, app.telemetry.watch) == 1
            go.set()
            until(lambda: value(shown(app), "holdfast_writes_refused_total", verb="complete", reason="already-claimed"))
        found = shown(app)
        assert value(found, "holdfast_leases_expired_total", queue="default") == 1
        assert value(found, "holdfast_worker_slots") is None, "a worker that has left has no slots"


def test_a_heartbeat_that_the_store_does_not_take_is_counted(working: Working, tmp_path: Path) -> None:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db", lease=1.5, heartbeat=0.1)) as app:
        app.instrument(metrics=True)
        go = threading.Event()

        @app.job
        def hold(n: int) -> int:
            go.wait(LONG)
            return n

        hold.enqueue(1)
        with working(app) as service:
            until(lambda: service.busy == 1)
            service._side_store.close()
            until(lambda: value(shown(app), "holdfast_heartbeat_failures_total"))
            until(lambda: value(shown(app), "holdfast_leases_lost_total", queue="default"))
            go.set()


def test_loops_tell_how_long_ago_they_last_got_through(app: Holdfast, working: Working) -> None:
    with working(app):

        def loops() -> set[str]:
            return {dict(labels)["loop"] for name, labels in shown(app) if name == "holdfast_loop_age_seconds"}

        assert until(loops) == {"claim", "heartbeat", "upkeep"}


def test_kinds_that_are_not_registered_count_as_other(app: Holdfast) -> None:
    assert app.telemetry.metrics is not None
    job = lifecycle.create("01a1e439-f7df-7521-800b-2d0586ae207a", NewJob("whatever", "{}"), 0)
    assert app.telemetry.metrics._labels(job) == ("default", "other")


def test_queues_beyond_a_hundred_count_as_other(app: Holdfast) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    app.enqueue_many([add.using(queue=f"q{n:04d}").prepare(n, n) for n in range(MOST_QUEUES + 50)])
    found = shown(app)
    queues = {dict(labels)["queue"] for name, labels in found if name == "holdfast_jobs_enqueued_total"}
    assert len(queues) == MOST_QUEUES + 1
    assert value(found, "holdfast_jobs_enqueued_total", queue="other", kind="add") == 50
    assert value(found, "holdfast_jobs", queue="other", state="queued") == 50
    assert sum(count for (name, _), count in found.items() if name == "holdfast_jobs") == MOST_QUEUES + 50


def test_no_metric_has_a_tenant_an_id_or_a_name_of_ones_own(app: Holdfast) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    job = add.using(tenant="acme", key="k-1", user="ada").enqueue(1, 2)
    app.run_worker(until_idle=True)
    text = render(app).decode()
    assert not any(word in text for word in ("acme", "k-1", "ada", str(job.id)))
    for family in FAMILIES.values():
        assert set(family.labels) <= {
            "queue",
            "kind",
            "state",
            "outcome",
            "verb",
            "reason",
            "call",
            "loop",
            "per",
            "what",
        }
        assert (family.name.endswith("_total")) == (family.sort == "counter")
        assert family.sort != "histogram" or family.name.endswith("_seconds")


def test_limits_are_told_by_their_fullest_subject_and_by_no_name(app: Holdfast) -> None:
    @app.job(queue="mail")
    def send(n: int) -> None: ...

    app.limits.set("mail", concurrency=2, per="tenant")
    app.limits.set("mail", rate="10/h", burst=5)
    app.limits.set("*", concurrency=4, per="key")
    for tenant, jobs in (("acme", 3), ("globex", 1)):
        for n in range(jobs):
            send.using(tenant=tenant).enqueue(n)
    claimed = app.store.claim(Claim("w", "l", MINUTE, 20))
    assert len(claimed) == 3
    found = shown(app)

    def told(queue: str, per: str, what: str) -> list[float | None]:
        names = ("capacity", "in_use", "full_subjects")
        return [value(found, f"holdfast_limit_{name}", queue=queue, per=per, what=what) for name in names]

    assert told("mail", "tenant", "concurrency") == [2, 2, 1]
    assert told("mail", "queue", "rate") == [5, 3, 0]
    assert told("*", "key", "concurrency") == [4, 0, 0]
    assert not any(tenant in render(app).decode() for tenant in ("acme", "globex"))


def test_what_is_paused_is_counted_and_not_named(app: Holdfast) -> None:
    for tenant in ("acme", "globex"):
        app.pause(tenant=tenant)
    app.pause(kind="send")
    app.pause("mail")
    found = shown(app)
    counted = {what: value(found, "holdfast_paused", what=what) for what in ("queue", "tenant", "kind")}
    assert counted == {"queue": 1, "tenant": 2, "kind": 1}
    assert "acme" not in render(app).decode()


def test_limits_of_queues_beyond_a_hundred_are_not_looked_at(app: Holdfast) -> None:
    asked = []
    standing = app.store.standing
    app.store.standing = lambda queue: asked.append(queue) or standing(queue)  # type: ignore[method-assign,func-returns-value]
    shown(app)
    assert asked == [], "nothing is limited"
    for n in range(MOST_QUEUES + 5):
        app.limits.set(f"q{n:04d}", concurrency=1)
    asked.clear()
    found = shown(app)
    assert len(asked) == MOST_QUEUES
    assert sum(name == "holdfast_limit_capacity" for name, _ in found) == MOST_QUEUES


def test_what_was_counted_passes_through_json_and_adds_up() -> None:
    one, other = Tally(), Tally()
    for tally, seconds in ((one, 0.3), (other, 100_000.0), (other, 0.3)):
        tally.observe(RUN, seconds, "q", "k")
        tally.count(FAMILIES["holdfast_attempts_started_total"], "q", "k")
    both = together([from_json(one.totals().as_json()), other.totals()])
    assert both.numbers == {("holdfast_attempts_started_total", ("q", "k")): 3}
    [counted] = both.spans.values()
    assert (sum(counted[:-1]), counted[-2], counted[-1]) == (3, 1, 100_000.6)
    assert counters(both) == both


def test_a_worker_serves_its_metrics_and_nothing_else(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    with started("worker", target, "--metrics", "0", cwd=tmp_path):
        address = _address(tmp_path)
        assert value(scrape(address), "holdfast_worker_slots") == 20
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(OSError, match="404"):
            scrape(address.replace("/metrics", "/elsewhere"))


def test_the_metrics_of_several_processes_add_up_and_stay_when_one_is_killed(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    with (
        closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as client,
        started("worker", target, "--metrics", "127.0.0.1:0", "--processes", "2", "-c", "3", cwd=tmp_path),
    ):

        @client.job
        def add(a: int, b: int) -> int:
            raise NotImplementedError

        @client.job
        def hold(name: str) -> str:
            raise NotImplementedError

        address = _address(tmp_path)
        done = {"queue": "default", "kind": "add", "outcome": "succeeded"}
        client.enqueue_many([add.prepare(n, n) for n in range(200)])
        until(lambda: value(scrape(address), "holdfast_attempts_ended_total", **done) == 200)
        until(lambda: value(scrape(address), "holdfast_worker_slots") == 6)
        assert value(scrape(address), "holdfast_attempt_run_seconds_count", queue="default", kind="add") == 200
        hold.enqueue("go")
        began = until(lambda: (tmp_path / "go.began").exists() and (tmp_path / "go.began").read_text())
        kill(int(began))
        (tmp_path / "go").touch()
        until(lambda: value(scrape(address), "holdfast_leases_expired_total", queue="default") == 1)
        held = {"queue": "default", "kind": "hold", "outcome": "succeeded"}
        until(lambda: value(scrape(address), "holdfast_attempts_ended_total", **held) == 1, within=LONG)
        assert value(scrape(address), "holdfast_attempts_ended_total", **done) == 200, "counters never go back"
        until(lambda: value(scrape(address), "holdfast_worker_slots") == 6)


def _address(folder: Path) -> str:
    def look() -> str:
        return next((line[11:] for line in output(folder).splitlines() if line.startswith("metrics at ")), "")

    return until(look)


@pytest.mark.parametrize("words", ["x", "70000", "host:", "127.0.0.1:x"])
def test_an_address_that_is_none_is_refused_in_one_sentence(tmp_path: Path, words: str) -> None:
    done = run("worker", write_application(tmp_path), "--metrics", words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{words!r} is not PORT or HOST:PORT" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path: Path) -> None:
    tally = Tally()
    with serve("127.0.0.1", 0, tally.totals) as taken:
        port = str(taken.server_address[1])
        done = run("worker", write_application(tmp_path), "--metrics", port, cwd=tmp_path)
        taken.shutdown()
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"Metrics cannot be served on 127.0.0.1:{port}" in done.stderr


def test_nothing_of_telemetrys_packages_is_loaded_unless_asked_for() -> None:
    program = (
        "import sys, holdfast\n"
        "app = holdfast.Holdfast('memory://')\n"
        "app.run_worker(until_idle=True)\n"
        "wrong = {'prometheus_client', 'opentelemetry', 'sentry_sdk', 'fastapi', 'boto3'} & set(sys.modules)\n"
        "assert not wrong, wrong\n"
        "assert app.telemetry.watch is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("choice", "package", "extra"),
    [("tracing", "opentelemetry", "tracing"), ("sentry", "sentry_sdk", "sentry")],
)
def test_a_missing_package_is_told_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, app: Holdfast, choice: str, package: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"holdfast.runtime.telemetry.{choice}", raising=False)
    with pytest.raises(BadInput, match=rf"pip install 'holdfast\[{extra}\]'\.$"):
        app.instrument(**{choice: True})


def test_counts_are_refused_by_nobody_when_a_claim_is_made_by_hand(app: Holdfast) -> None:
    """The counters are those of telemetry's own process: what others do to the store is seen in its gauges."""

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, 2)
    [job] = app.store.claim(Claim("other", "lease", 10_000_000, 1))
    app.store.commit([lifecycle.complete(job, None, Retention())])
    found = shown(app)
    assert value(found, "holdfast_jobs", queue="default", state="succeeded") == 1
    assert value(found, "holdfast_attempts_started_total", queue="default", kind="add") is None
