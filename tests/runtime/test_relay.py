"""Events reach their sinks: at least once, in order, with ids that stay the same, and no sink holds up another."""

import asyncio
import json
import logging
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.sinks import JsonLines, Sinks, Webhook
from holdfast.domain import events, lifecycle
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.move import Answer
from holdfast.port.clock import SystemClock
from holdfast.port.store import Claim, EventRecord, Store
from holdfast.runtime import relay as relaying
from holdfast.runtime.relay import Relay
from holdfast.stores import open_store
from holdfast.stores.memory import MemoryStore
from tests.workers import LONG

SECOND = 1_000_000
QUICK = (0.001, 0.01)
IDS = count(1)
Target = Callable[[Any], Any]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    opened = open_store(urls.get(request.param) or request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


@pytest.fixture
def another(store: Store) -> Iterator[Store]:
    """Give the same store as another worker opens it."""
    opened = open_store(store.url) if store.capabilities.shared else store
    yield opened
    opened.close()


class Heard:
    """A sink that remembers what it was given, and can be waited for."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def __call__(self, event: dict[str, Any]) -> None:
        with self._changed:
            self.told.append(event)
            self._changed.notify_all()

    def until(self, number: int) -> list[dict[str, Any]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= number, LONG), self.told
            return list(self.told)

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.told]


@contextmanager
def relaying_to(store: Store, *, owner: str = "ada", **sinks: Target | JsonLines | Webhook) -> Iterator[Relay]:
    declared = Sinks()
    for name, target in sinks.items():
        declared.add(name, target)
    with started(store, declared, owner) as relay:
        yield relay


@contextmanager
def started(store: Store, sinks: Sinks, owner: str = "ada") -> Iterator[Relay]:
    relay = Relay(store, sinks, owner, SystemClock(), pauses=QUICK)
    relay.start()
    try:
        yield relay
    finally:
        assert relay.stop(LONG)


def claimed(store: Store, **fields: Any) -> JobRecord:
    id_ = f"018f0000-0000-7000-8000-{next(IDS):012}"
    store.insert([[(id_, NewJob("ingest", "{}", tenant="acme")._replace(**fields))]])
    (job,) = store.claim(Claim("worker", f"lease-{id_}", 60 * SECOND, 1, id=id_))
    return job


def finish(store: Store, job: JobRecord | None = None) -> str:
    """Bring a job to its end, which is told in two events: that it started, and that it is completed."""
    job = job or claimed(store)
    move = events.told(job, lifecycle.complete(job, None, Retention()), public=True)
    assert store.commit([move]) == [Answer.OK]
    return job.id


def test_events_come_in_order_and_once_while_nothing_goes_wrong(store: Store) -> None:
    heard = Heard()
    with relaying_to(store, all=heard) as relay:
        for _ in range(300):
            finish(store)
        assert relay.flush(LONG)
        assert relay.tallies()["all"] == (600, 0, 0)
    positions = [event["position"] for event in heard.told]
    assert positions == sorted(positions)
    assert len(set(heard.ids)) == 600


def test_a_batch_is_a_list_in_order_and_may_be_taken_by_an_async_function(store: Store) -> None:
    batches: list[list[int]] = []
    loops = set()

    async def take(told: list[dict[str, Any]]) -> None:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        batches.append([event["position"] for event in told])

    sinks = Sinks()
    sinks.add("batches", take, batch=True)
    with started(store, sinks) as relay:
        for _ in range(700):
            finish(store)
        assert relay.flush(LONG)
        assert len(loops) == 1
    flat = [position for batch in batches for position in batch]
    assert (len(flat), flat) == (1_400, sorted(flat))
    assert max(len(batch) for batch in batches) <= 500


def test_an_async_function_takes_events_one_by_one(store: Store) -> None:
    heard = Heard()

    async def take(event: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        heard(event)

    with relaying_to(store, one=take) as relay:
        finish(store)
        assert relay.flush(LONG)
    assert [event["name"] for event in heard.told] == ["workflow_run_started", "workflow_run_completed"]


def test_a_new_sink_is_told_what_comes_and_not_what_was(store: Store) -> None:
    heard, later = Heard(), Heard()
    finish(store)
    with relaying_to(store, first=heard) as relay:
        job = finish(store)
        assert relay.flush(LONG)
    assert {event["job_id"] for event in heard.told} == {job}
    finish(store)
    with relaying_to(store, first=heard, second=later) as relay:
        last = finish(store)
        assert relay.flush(LONG)
    assert (len(heard.told), {event["job_id"] for event in later.told}) == (6, {last})


def test_a_worker_that_starts_later_does_not_move_a_sink_on(store: Store, another: Store) -> None:
    heard, gate = Heard(), threading.Event()

    def slow(event: dict[str, Any]) -> None:
        assert gate.wait(LONG)
        heard(event)

    with relaying_to(store, slow=slow):
        for _ in range(5):
            finish(store)
        with relaying_to(another, owner="bob", slow=slow) as second:
            gate.set()
            assert second.flush(LONG)
    assert len(heard.told) == 10


def test_a_sink_is_given_the_names_it_asked_for_and_its_position_passes_the_rest(store: Store) -> None:
    heard, sinks = Heard(), Sinks()
    sinks.add("ends", heard, names=["workflow_run_completed"])
    with started(store, sinks) as relay:
        finish(store)
        finish(store, claimed(store, parent=f"018f0000-0000-7000-8000-{next(IDS):012}"))
        assert relay.flush(LONG)
        assert store.events(store.sinks()["ends"], 10) == []
    assert [event["name"] for event in heard.told] == ["workflow_run_completed"] * 2


def test_what_holdfast_tells_itself_is_told_to_no_sink(store: Store) -> None:
    heard = Heard()
    with relaying_to(store, all=heard) as relay:
        finish(store, claimed(store, parent=f"018f0000-0000-7000-8000-{next(IDS):012}"))
        assert relay.flush(LONG)
    assert [event["name"] for event in heard.told] == ["workflow_run_started", "workflow_run_completed"]


def test_a_failing_sink_delays_only_itself_and_says_so_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    heard, tried, mended = Heard(), Heard(), threading.Event()

    def broken(event: dict[str, Any]) -> None:
        tried(event)
        if not mended.is_set():
            msg = "canary-4711"
            raise ConnectionError(msg)

    caplog.set_level(logging.DEBUG, "holdfast")
    sinks = Sinks()
    sinks.add("fine", heard)
    sinks.add("broken", broken, max_tries=1_000_000)
    with started(store, sinks) as relay:
        finish(store)
        heard.until(2)
        tried.until(6)
        assert set(tried.ids) == {heard.ids[0]}
        assert not relay.flush(0.05)
        mended.set()
        assert relay.flush(LONG)
        assert relay.tallies()["broken"].delivered == 2
        assert [courier._pause for courier in relay._couriers] == [0.0, 0.0], "a new trouble begins with a short pause"
    said = [record.getMessage() for record in caplog.records if "broken" in record.getMessage()]
    assert len(said) == 2
    assert said[0].startswith("sink broken: ConnectionError raised in broken, line ")
    assert said[1] == "sink broken: delivers again"
    assert "canary" not in caplog.text


def test_an_event_that_is_always_refused_is_passed_over_and_counted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    heard, refused = Heard(), Heard()

    def picky(event: dict[str, Any]) -> None:
        if event["kind"] == "poison":
            refused(event)
            raise SystemExit
        heard(event)

    with relaying_to(store, picky=picky) as relay:
        finish(store)
        finish(store, claimed(store, kind="poison"))
        finish(store)
        assert relay.flush(LONG)
        assert relay.tallies()["picky"] == (4, 20, 2)
    assert [refused.ids.count(one) for one in dict.fromkeys(refused.ids)] == [10, 10]
    passed = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    ids = dict.fromkeys(refused.ids)
    assert passed == [f"sink picky: event {one} was refused 10 times and is passed over" for one in ids]


def test_one_bad_event_in_a_batch_ends_up_alone(store: Store) -> None:
    taken: list[str] = []

    def picky(told: list[dict[str, Any]]) -> None:
        if any(event["kind"] == "poison" for event in told):
            raise ValueError
        taken.extend(event["id"] for event in told)

    sinks = Sinks()
    sinks.add("picky", picky, batch=True, names=["workflow_run_completed"], max_tries=3)
    gate = Relay(store, sinks, "ada", SystemClock(), pauses=QUICK)
    gate.start()
    assert gate.stop(LONG)
    for n in range(40):
        finish(store, claimed(store, kind="poison" if n == 17 else "ingest"))
    with started(store, sinks) as relay:
        assert relay.flush(LONG)
        assert relay.tallies()["picky"].passed_over == 1
    assert (len(taken), len(set(taken))) == (39, 39)


def test_one_worker_delivers_at_a_time_and_another_goes_on_when_it_leaves(
    store: Store, another: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "TERM", SECOND)
    ada, bob = Heard(), Heard()
    with relaying_to(store, owner="bob", shared=bob) as second:
        finish(store)
        bob.until(2)
        with relaying_to(another, owner="ada", shared=ada) as first:
            finish(store)
            bob.until(4)
            assert second.stop(LONG)
            finish(store)
            assert first.flush(LONG)
    assert (len(bob.told), len(ada.told)) == (4, 2)


def test_a_relay_that_stops_leaves_its_sinks_to_others_at_once(store: Store, another: Store) -> None:
    with relaying_to(store, sink=Heard()) as relay:
        assert [courier.lead.held for courier in relay._couriers] == [True]
    assert another.lead("sink:sink", "bob", SECOND)


def test_the_lead_is_kept_however_long_a_call_takes(
    store: Store, another: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "TERM", SECOND // 2)
    free, calls, others = threading.Event(), Heard(), Heard()

    def slow(event: dict[str, Any]) -> None:
        calls(event)
        assert free.wait(LONG)

    sinks = Sinks()
    sinks.add("slow", others)
    with relaying_to(store, slow=slow):
        finish(store)
        calls.until(1)
        with started(another, sinks, "bob") as second:
            assert not second.flush(1.5)
            free.set()
            assert second.flush(LONG)
    assert (len(calls.told), len(others.told)) == (2, 0)


def test_what_a_stopped_relay_was_in_the_middle_of_is_delivered_again(caplog: pytest.LogCaptureFixture) -> None:
    store, free, calls, heard = MemoryStore(), threading.Event(), Heard(), Heard()

    def stuck(event: dict[str, Any]) -> None:
        calls(event)
        if event["position"] == 2:
            assert free.wait(LONG)

    sinks = Sinks()
    sinks.add("sink", stuck)
    relay = Relay(store, sinks, "ada", SystemClock(), pauses=QUICK)
    relay.start()
    finish(store)
    calls.until(2)
    assert not relay.stop(0.05)
    assert "left while delivering to sink" in caplog.text
    assert store.sinks() == {"sink": 0}
    store._roles.clear()  # the lead of the one that hangs has run out
    with relaying_to(store, owner="bob", sink=heard) as second:
        assert second.flush(LONG)
    assert heard.ids == calls.ids
    caplog.clear()
    store.close()
    free.set()
    (courier,) = relay._couriers
    courier.thread.join(LONG)
    assert (courier.thread.is_alive(), caplog.text) == (False, "")


def test_a_store_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(MemoryStore):
        away = 0

        def events(self, after: int, limit: int) -> list[EventRecord]:
            if self.away:
                self.away -= 1
                msg = "Nobody is there."
                raise StoreUnavailable(msg)
            return super().events(after, limit)

    store, heard = Flaky(), Heard()
    with relaying_to(store, sink=heard) as relay:
        store.away = 2
        finish(store)
        assert relay.flush(LONG)
    assert len(heard.told) == 2
    waits = [record for record in caplog.records if "waits for the store" in record.getMessage()]
    assert len(waits) <= 1


def test_events_go_once_every_sink_has_had_them(store: Store) -> None:
    heard, held = Heard(), threading.Event()

    def late(event: dict[str, Any]) -> None:
        assert held.wait(LONG)

    with relaying_to(store, quick=heard, late=late) as relay:
        finish(store)
        heard.until(2)
        assert len(store.events(0, 10)) == 2
        held.set()
        assert relay.flush(LONG)
    assert store.events(0, 10) == []


def test_without_sinks_there_is_nothing_to_do(store: Store) -> None:
    relay = Relay(store, Sinks(), "ada", SystemClock())
    relay.start()
    assert relay.flush(0)
    assert relay.stop(0)
    assert relay.tallies() == {}


def test_an_idle_relay_looks_once_a_second_and_later_less_often() -> None:
    rests = [relaying._rest(idle) for idle in range(200)]
    assert rests == sorted(rests)
    assert (rests[0], rests[5], rests[60], rests[61]) == (0.1, 1.0, 1.0, 5.0)


def test_lines_are_json_whole_and_for_the_owner_alone(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with relaying_to(store, file=JsonLines(file)) as relay:
        for _ in range(50):
            finish(store)
        assert relay.flush(LONG)
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["position"] for event in told] == list(range(1, 101))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


_CARRIER = """
import sys
from holdfast.client.sinks import JsonLines, Sinks
from holdfast.port.clock import SystemClock
from holdfast.runtime import relay
from holdfast.stores import open_store

relay.TERM = 50_000
relay._ASIDE = 0.05
sinks = Sinks()
sinks.add("file", JsonLines(sys.argv[2]))
carrying = relay.Relay(open_store(sys.argv[1]), sinks, sys.argv[3], SystemClock())
carrying.start()
print("started", flush=True)
if sys.stdin.readline():
    print(carrying.flush(30), flush=True)
carrying.stop(5)
"""


def test_no_event_is_lost_or_torn_when_whoever_carries_is_killed(tmp_path: Path) -> None:
    store, file = open_store(f"sqlite:///{tmp_path}/jobs.db"), tmp_path / "events.jsonl"

    def carrier(name: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _CARRIER, store.url, str(file), name]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    jobs, draw = [], random.Random(4711)
    for n in range(6):
        process = carrier(f"carrier-{n}")
        jobs += [finish(store) for _ in range(draw.randrange(20, 60))]
        process.kill()
        process.communicate()
    process = carrier("last")
    assert process.communicate("flush\n", LONG)[0] == "True\n"
    store.close()
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(event["job_id"], event["name"]) for event in told} == {
        (job, name) for job in jobs for name in ("workflow_run_started", "workflow_run_completed")
    }
    first = list(dict.fromkeys(event["position"] for event in told))
    assert first == sorted(first)


def test_a_file_that_cannot_be_written_is_waited_for(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = folder / "events.jsonl"
    with relaying_to(store, file=JsonLines(file)) as relay:
        folder.rename(tmp_path / "away")
        finish(store)
        assert not relay.flush(0.1)
        assert "No such file or directory" in caplog.text
        (tmp_path / "away").rename(folder)
        assert relay.flush(LONG)
        assert relay.tallies()["file"].passed_over == 0
    assert len(file.read_text().splitlines()) == 2
