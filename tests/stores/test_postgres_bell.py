"""How often the worker that leads looks on behalf of all."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.domain.job import NewJob
from holdfast.port.store import UPKEEP, Claim
from holdfast.stores.postgres import PostgresStore, gate
from holdfast.stores.postgres.bell import Bell


@pytest.fixture
def bell(postgres_url: str) -> Iterator[Bell]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store._bell


def rest(bell: Bell) -> float:
    """Look once; give the seconds until the next look."""
    bell._look(None)
    return bell._next_look - bell._last_look


def test_dear_looks_are_made_seldom_and_one_that_was_slow_by_accident_changes_nothing(
    bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    busy = [True]
    monkeypatch.setattr(bell, "_busy", lambda: busy[0])

    def look(seconds: float, due_in: float | None = None) -> float:
        def due() -> tuple[list[str], float | None]:
            clock[0] += seconds
            return [], due_in

        monkeypatch.setattr(bell, "_due", due)
        return rest(bell)

    usual = look(0.001)
    assert look(0.2) == usual, "it may have been an accident"
    assert look(0.2) == pytest.approx(0.2 * 20)
    assert look(0.2, due_in=1.0) == pytest.approx(0.2 + 1.0), "what is known to come due is looked for then"
    assert look(5.0) == pytest.approx(0.2 * 20)
    assert look(5.0) == pytest.approx(5.0), "never more seldom than that"
    busy[0] = False
    bell._rest_no_longer_than_busy()
    assert bell._next_look - bell._last_look == usual, "who is idle looks as often as ever"
    assert look(5.0) == usual
    assert look(0.001) == usual


def test_what_nobody_takes_is_called_out_less_and_less_often(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    bell.told_leader(UPKEEP, leads=True, term=60, crowd=5)

    def look(found: list[str], due_in: float | None = None) -> float:
        monkeypatch.setattr(bell, "_due", lambda: (found, due_in))
        return rest(bell)

    usual = look([])
    assert [look(["unserved"]) for _ in range(6)] == pytest.approx([0.02, 0.04, 0.08, 0.16, usual, usual])
    assert look(["unserved"], due_in=0.1) == pytest.approx(0.1), "what comes due is looked for all the same"
    assert look(["unserved"], due_in=0.001) == pytest.approx(0.02)
    look([])
    assert look(["unserved"]) == pytest.approx(0.02), "this is another one"


def test_a_crowd_that_turns_its_own_away_is_called_seldom(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, full, called = [1_000.0], [False], list[list[str]]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(bell, "_full", lambda: full[0])
    monkeypatch.setattr(bell, "_call", lambda queues, _: called.append(sorted(queues)))
    bell.told_leader(UPKEEP, leads=True, term=60, crowd=5)

    def calls(found: list[str], looks: int) -> int:
        before = len(called)
        monkeypatch.setattr(bell, "_due", lambda: (found, None))
        for _ in range(looks):
            clock[0] += 0.25
            assert bell._look(None), "we ourselves go and see"
        return len(called) - before

    assert calls(["mail"], 8) == 8
    full[0] = True
    assert calls(["mail"], 16) == 2, "once in two seconds"
    assert calls(["mail", "urgent"], 2) == 1, "who serves another queue is called at once"
    assert calls(["mail"], 2) == 0
    full[0] = False
    assert calls(["mail"], 4) == 4


def test_a_claim_that_is_turned_away_says_that_there_is_no_room(postgres_url: str) -> None:
    want = Claim("somebody", "lease", 60_000_000, 1, defers=True)
    with closing(PostgresStore(postgres_url)) as store, store.pool.connect() as other, other.transaction():
        store.insert([[("0192f1e5-aaaa-7000-8000-000000000001", NewJob("noop", "{}"))]])
        assert not store._bell._full()
        taken = "SELECT pg_try_advisory_xact_lock(%s, place) FROM generate_series(1, %s) AS place"
        other.execute(taken, [gate.key(store.address.schema, want), gate.places(want)])
        assert store.claim(want) == []
        assert store._bell._full()


def test_whoever_takes_jobs_is_busy(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        assert not store._bell._busy()
        store.insert([[("0192f1e5-aaaa-7000-8000-000000000001", NewJob("noop", "{}"))]])
        assert store.claim(Claim("somebody", "lease", 60_000_000, 1))
        assert store._bell._busy()
