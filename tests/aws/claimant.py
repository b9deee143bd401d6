"""One of several processes that work on a table: claims, settles, and prints the id of every job it settled."""

import sys
from contextlib import closing
from uuid import uuid4

from holdfast.domain import lifecycle
from holdfast.domain.job import Retention
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer
from holdfast.port.store import Claim
from holdfast.stores import open_store


def say(line: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url: str, name: str) -> None:
    """Work until three looks in a row show nothing, reaping what others left behind."""
    with closing(open_store(url)) as store:
        say("ready")
        sys.stdin.readline()
        empty = 0
        while empty < 3:
            late = [lifecycle.reap(job, store.now(), Retention()) for job in store.expired(20)]
            store.commit(late)
            held = store.claim(Claim(name, uuid4().hex, 2 * SECOND, 5))
            steps = [lifecycle.checkpoint(job, f"step of {job.token}", "1") for job in held]
            store.commit(steps)
            answers = store.commit([lifecycle.complete(job, f'"{name}"', Retention()) for job in held])
            for job, answer in zip(held, answers, strict=True):
                if answer is Answer.OK:
                    say(job.id)
            empty = 0 if held or late else empty + 1
            if not held:
                store.wait(None, 1.0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
