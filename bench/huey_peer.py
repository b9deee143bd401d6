"""huey on SQLite, the peer with an embedded store: drain no-op tasks with its own consumer."""

import logging
import sys
import threading
import time

from huey import SqliteHuey

huey = SqliteHuey("bench", filename=sys.argv[1], fsync=True)
TASKS = int(sys.argv[2])
done = 0
finished = threading.Event()


@huey.task()
def noop(_seq: int) -> None:
    """Do nothing, and count it."""
    global done  # noqa: PLW0603
    done += 1
    if done >= TASKS:
        finished.set()


def main() -> None:
    """Fill the queue, start the consumer's threads, wait for the last task; print tasks per second."""
    logging.disable(logging.CRITICAL)
    message = huey.serialize_task(noop.s(-1))
    with huey.storage.db(commit=True) as db:
        db.executemany(
            "insert into task (queue, data, priority) values (?, ?, 0)", [(huey.storage.name, message)] * TASKS
        )
    consumer = huey.create_consumer(
        workers=1, periodic=False, check_worker_health=False, initial_delay=0.001, max_delay=0.01
    )
    started = time.perf_counter()
    consumer.start()
    finished.wait(300)
    print(TASKS / (time.perf_counter() - started))
    consumer.stop()


if __name__ == "__main__":
    main()
