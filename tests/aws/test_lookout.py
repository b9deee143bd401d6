"""When a worker of the scheduled queue looks at the table, and what wakes it before."""

import threading
from contextlib import closing

from holdfast.domain.job import NewJob
from holdfast.domain.moments import SECOND
from holdfast.stores.dynamodb import DynamoStore
from holdfast.stores.dynamodb.lookout import Lookout
from holdfast.testing.clock import ManualClock

PATIENCE = 20


def looks(lookout: Lookout, clock: ManualClock, seconds: float) -> int:
    """Count the looks of a worker that finds nothing."""
    number, end = 0, clock.monotonic() + seconds
    while clock.monotonic() + lookout.left < end:
        clock.advance(seconds=lookout.left)
        lookout.looked(None)
        number += 1
    return number


def test_a_worker_that_has_been_idle_for_long_looks_twice_a_minute() -> None:
    clock = ManualClock()
    lookout = Lookout(clock, 30)
    assert looks(lookout, clock, 10) == 9
    looks(lookout, clock, 600)
    assert looks(lookout, clock, 600) in (19, 20)
    lookout.stir()
    assert lookout.left == 1


def test_a_look_is_not_later_than_the_next_job_that_is_due() -> None:
    clock = ManualClock()
    lookout = Lookout(clock, 30)
    looks(lookout, clock, 600)
    lookout.looked(7 * SECOND)
    assert lookout.left == 7


def test_a_url_that_asks_for_more_looks_gets_them() -> None:
    clock = ManualClock()
    assert looks(Lookout(clock, 0.5), clock, 60) > 100
    assert looks(Lookout(clock, 0), clock, 1) <= 20


def test_a_job_that_another_process_stored_ends_a_wait(dynamodb_url: str) -> None:
    elsewhere = dynamodb_url.replace("127.0.0.1", "localhost")  # another address has another bell
    with closing(DynamoStore(dynamodb_url)) as store, closing(DynamoStore(elsewhere)) as other:
        heard: list[bool] = []
        waiter = threading.Thread(target=lambda: heard.append(store.wait(["mail"], PATIENCE)))
        waiter.start()
        other.insert([[("01890000-0000-7000-8000-000000000000", NewJob("echo", "{}", queue="mail"))]])
        waiter.join(PATIENCE)
        assert heard == [True]
