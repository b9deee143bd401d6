"""One worker process of a chaos run: `python -m holdfast.chaos.worker LEDGER NAME`, the store in `HOLDFAST_URL`."""

import sys
from pathlib import Path

from holdfast.chaos.application import application
from holdfast.chaos.ledger import Ledger
from holdfast.chaos.witness import Witness
from holdfast.demo.worker import leave_with_the_parent
from holdfast.runtime.telemetry.watch import Watches

SLOTS = 4


def main(path: str, name: str) -> None:
    """Work until told to stop, or until whoever started this is gone."""
    leave_with_the_parent()
    ledger = Ledger(Path(path), name)
    app = application(None, ledger)
    app.telemetry.watch = Watches([Witness(ledger)])
    app.service(concurrency=SLOTS, worker_id=name).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
