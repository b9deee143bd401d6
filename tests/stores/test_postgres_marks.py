"""When a claim looks from the front, and when it goes on from where the last one stopped."""

import time

from holdfast.domain import lifecycle
from holdfast.domain.job import NewJob
from holdfast.port.store import Claim
from holdfast.stores.postgres.claiming import look
from holdfast.stores.postgres.marks import MANY, Marks

WANT = Claim("somebody", "lease", 60_000_000, MANY)


def seen(seconds: float) -> Marks:
    """Give the marks of somebody who takes many jobs at a time, and whose last look from the front took so long."""
    jobs = [lifecycle.create(f"00000000-0000-7000-8000-{n:012}", NewJob("noop", "{}"), n) for n in range(MANY)]
    marks = Marks()
    marks.took(jobs, MANY, seconds, front=True)
    return marks


def looks(marks: Marks) -> bool:
    return look("holdfast", WANT, marks, None, None).front


def test_of_two_trips_at_once_one_looks_from_the_front() -> None:
    marks = seen(seconds=0.0)
    assert not looks(marks), "it has just looked"
    marks._looked = time.monotonic() - 10
    assert looks(marks)
    assert not looks(marks), "the other looks already"


def test_after_a_claim_that_failed_the_next_looks_from_the_front() -> None:
    marks = seen(seconds=0.0)
    marks.failed()
    assert looks(marks)


def test_the_dearer_a_look_is_the_less_often_it_is_made() -> None:
    marks = seen(seconds=1.0)
    marks._looked = time.monotonic() - 10
    assert not looks(marks)
    marks._looked = time.monotonic() - 100
    assert looks(marks)
