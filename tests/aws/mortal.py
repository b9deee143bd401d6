"""Processes that live the lives of some jobs and may be killed at any call.

One is started and forks the others, since that takes no time. For each number on the standard input it prints the id of
a process, which waits for a line, and then how that one ended.
"""

import os
import sys
from contextlib import closing
from uuid import uuid4

from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob, Retention
from holdfast.domain.moments import SECOND
from holdfast.domain.retry import Retry
from holdfast.port.store import Claim
from holdfast.stores import open_store
from holdfast.testing.lab import FLAKY, HOPELESS

LEASE = SECOND // 4


def live(url: str, seed: int) -> None:
    """Store three jobs, and let one succeed, one fail and one die."""
    numbers = iter(range(seed, seed + 100))
    ids = Ids(lambda: next(numbers), lambda bits: seed % (1 << bits))
    with closing(open_store(url)) as store:
        store.counts()
        say(f"{os.getpid()}")
        sys.stdin.readline()
        new = NewJob("echo", "{}", retry=Retry.fixed(0).spec, crash_cap=9, max_attempts=9)
        store.insert([[(id_, new)] for id_ in ids.take(3)])
        held = sorted(store.claim(Claim("mortal", uuid4().hex, LEASE, 3)), key=lambda job: job.id)
        for number, job in enumerate(held):
            if number == 0:
                store.commit([lifecycle.complete(job, "1", Retention())])
            else:
                failure = FLAKY if number == 1 else HOPELESS
                store.commit([lifecycle.fail(job, failure, draw=0, retention=Retention())])


def say(line: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url: str) -> None:
    """Let one process after the other live."""
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            live(url, int(line))
            os._exit(0)
        say("done" if os.waitpid(child, 0)[1] == 0 else "killed")


if __name__ == "__main__":
    main(sys.argv[1])
