"""The server's time, as a store object reckons it."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.domain.job import NewJob
from holdfast.domain.moments import SECOND
from holdfast.port.store import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.reckoning import Reckoning


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the clock of this machine, which the test moves."""
    clock = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_it_goes_on_from_what_was_told_until_that_is_old(here: list[float]) -> None:
    reckoning = Reckoning()
    assert reckoning.now() is None
    reckoning.heard(5 * SECOND)
    assert reckoning.now() is None, "how late it is at least does not tell the time"
    assert reckoning.asked(here[0], 10 * SECOND) == 10 * SECOND
    here[0] += 2
    assert reckoning.now() == 12 * SECOND
    reckoning.heard(20 * SECOND)
    here[0] += 100
    assert reckoning.now() == 120 * SECOND
    here[0] += 100
    assert reckoning.now() is None, "what was heard does not make an old answer new"


def test_an_answer_that_took_long_does_not_set_it_back(here: list[float]) -> None:
    reckoning = Reckoning()
    reckoning.asked(here[0], 10 * SECOND)
    here[0] += 1
    assert reckoning.asked(here[0] - 0.5, 10 * SECOND + SECOND // 2) == 11 * SECOND
    assert reckoning.asked(here[0] - 0.5, 10 * SECOND) == 10 * SECOND + SECOND // 2, "no more than it can be"
    assert reckoning.asked(here[0] - 0.5, 30 * SECOND) == 30 * SECOND, "nor behind what is told"


@pytest.fixture
def behind(postgres_url: str) -> Iterator[PostgresStore]:
    """A store with a due job, which takes the time to be five seconds earlier than it is."""
    with closing(PostgresStore(postgres_url)) as store:
        store.insert([[("0192f1e5-aaaa-7000-8000-000000000001", NewJob("noop", "{}"))]])
        now = time.monotonic()
        store._reckoning._told = (now, now, store.now() - 5 * SECOND)
        yield store


def test_what_is_due_is_so_by_a_clock_that_is_behind(behind: PostgresStore) -> None:
    due = behind.next_due(None)
    assert due is not None
    assert due <= behind.now()


def test_who_claims_knows_that_it_is_as_late_as_the_claim_says(behind: PostgresStore) -> None:
    (job,) = behind.claim(Claim("somebody", "lease", 60 * SECOND, 1))
    assert behind.now() >= job.updated_at
