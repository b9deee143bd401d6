"""One worker process of the demo: `python -m holdfast.demo.worker LEDGER NAME`, with the store in `HOLDFAST_URL`."""

import os
import sys
import threading
from pathlib import Path

from holdfast.demo.application import application
from holdfast.demo.ledger import Ledger

SLOTS = 4


def main(path: str, name: str) -> None:
    """Work until told to stop, or until the demo is gone."""
    leave_with_the_parent()
    application(None, Ledger(Path(path), name)).service(concurrency=SLOTS, worker_id=name).run()


def leave_with_the_parent() -> None:
    """End this process with the one that started it: that one holds the other end of stdin and never writes, so the
    end of it means that it is gone.
    """

    def leave() -> None:
        os.read(0, 1)
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
