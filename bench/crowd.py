"""Many workers on one queue, in a few processes: `python -m bench.crowd ROLE NUMBER`, on the store BENCH_URL names.

`services` is so many worker services with default options; `bare` is so many threads that complete and claim in small
batches with a bare statement on the floor's minimal table.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg

from holdfast.bench import floor
from holdfast.bench.processes import say
from holdfast.bench.roles import application

BATCH = 10
_EMPTY = 3
"""So many claims in a row that find nothing mean that nothing is left."""


Trip = Callable[[], bool]
"""Completes a batch and claims the next; tells whether there was one."""


def drain(trips: Sequence[Trip]) -> None:
    """Make each kind of trip in a thread of its own: until nothing is left, to warm up; and again when told to."""
    _together(trips)
    say(ready=True)
    sys.stdin.readline()
    _together(trips)
    say(done=True)


def _together(trips: Sequence[Trip]) -> None:
    threads = [threading.Thread(target=_drain, args=(trip,)) for trip in trips]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drain(trip: Trip) -> None:
    empty = 0
    while empty < _EMPTY:
        empty = 0 if trip() else empty + 1
        if empty:
            threading.Event().wait(0.005)


def bare(db: psycopg.Connection) -> Trip:
    """Complete and claim as the floor does; in a crowd its statement meets itself, and one of two must try again."""
    ids: list[int] = []

    def trip() -> bool:
        with suppress(psycopg.errors.DeadlockDetected):
            ids[:] = [row[0] for row in db.execute(floor.FOLDED, {"ids": ids, "batch": BATCH}, prepare=True)]
        return bool(ids)

    return trip


def services(url: str, number: int) -> None:
    """Run worker services until killed."""
    app = application(url).app
    all_ = [app.service() for _ in range(number)]
    say(ready=True)
    sys.stdin.readline()
    for service in all_:
        threading.Thread(target=service.run, daemon=True).start()
    say(running=True)
    sys.stdin.readline()


def main(role: str, number: int) -> None:
    """Play a role."""
    url = os.environ["BENCH_URL"]
    match role:
        case "bare":
            drain([bare(psycopg.connect(url, autocommit=True)) for _ in range(number)])
        case _:
            services(url, number)
    sys.stdout.flush()
    os._exit(0)  # hundreds of connections need not be closed one by one


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
