"""One worker process of the demo: `python -m holdfast.demo.worker URL LEDGER NAME`."""

import os
import sys
import threading
from pathlib import Path

from holdfast.demo.application import application
from holdfast.demo.ledger import Ledger

SLOTS = 4


def main(url: str, path: str, name: str) -> None:
    """Work until told to stop, or until the demo is gone."""
    threading.Thread(target=_leave_with_the_demo, daemon=True).start()
    application(url, Ledger(Path(path), name)).service(concurrency=SLOTS, worker_id=name).run()


def _leave_with_the_demo() -> None:
    """The demo holds the other end of stdin and never writes: the end of it means that the demo is gone."""
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
