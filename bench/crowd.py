"""Many workers on one queue, in a few processes: `python -m bench.crowd ROLE NUMBER`, on the store BENCH_URL names.

`loop` is so many threads, each with a store object of its own, that complete and claim in small batches; `idle` is so
many worker services with nothing to do.
"""

import os
import secrets
import sys
import threading
from collections.abc import Sequence

from holdfast.bench.processes import say
from holdfast.bench.roles import application
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Move
from holdfast.port.store import Claim, Store
from holdfast.stores import open_store

BATCH = 10
_EMPTY = 3
"""So many claims in a row that find nothing mean that nothing is left."""


def loop(stores: Sequence[Store]) -> None:
    """Drain with each store in a thread of its own: what is there, to warm up; and again when told to."""
    _together(stores)
    say(ready=True)
    sys.stdin.readline()
    _together(stores)
    say(done=True)


def _together(stores: Sequence[Store]) -> None:
    threads = [threading.Thread(target=_drain, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drain(store: Store) -> None:
    owner, retention, empty = secrets.token_hex(4), Retention(), 0
    moves: list[Move] = []
    while empty < _EMPTY:
        _, jobs = store.exchange(moves, Claim(owner, secrets.token_hex(8), MINUTE, BATCH))
        moves = [lifecycle.complete(job, "2", retention) for job in jobs]
        empty = 0 if jobs else empty + 1
        if not jobs:
            threading.Event().wait(0.005)


def idle(url: str, number: int) -> None:
    """Run worker services until killed."""
    app = application(url).app
    services = [app.service() for _ in range(number)]
    say(ready=True)
    sys.stdin.readline()
    for service in services:
        threading.Thread(target=service.run, daemon=True).start()
    say(running=True)
    sys.stdin.readline()


def main(role: str, number: int) -> None:
    """Play a role."""
    url = os.environ["BENCH_URL"]
    if role == "loop":
        loop([open_store(url) for _ in range(number)])
    else:
        idle(url, number)
    sys.stdout.flush()
    os._exit(0)  # hundreds of connections need not be closed one by one


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
