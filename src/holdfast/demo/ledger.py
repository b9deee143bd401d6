"""The ledger: what handlers really did, written by themselves to a file that no part of Holdfast reads or writes.

One line per event, appended with a single write, so that lines of several processes never mix and a killed process
leaves whole lines only.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from holdfast.client.context import Context
from holdfast.client.job import Job
from holdfast.domain.moments import Micros
from holdfast.port.clock import SystemClock

Word = Literal["begin", "done", "sent", "fatal"]


class Entry(NamedTuple):
    """One line. `note` is a run's receipt for `done`, and the next job's key for `sent`."""

    at: Micros
    word: Word
    job: str
    attempt: int
    worker: str
    note: str = ""
    sent: str = ""
    """The id that the store gave the next job."""
    duplicate: bool = False
    """Whether the next job was there already."""


class Pen:
    """Writes whole lines: a time, and what there is to say."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._clock = SystemClock()

    def write(self, *values: object) -> None:
        """Write one line, with a single write."""
        os.write(self._file, json.dumps([self._clock.now(), *values]).encode() + b"\n")


def lines(path: Path) -> list[list[Any]]:
    """Read every line, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Ledger:
    """One worker process's own pen."""

    def __init__(self, path: Path, worker: str) -> None:
        self._pen = Pen(path)
        self._worker = worker

    @contextmanager
    def run(self, ctx: Context) -> Iterator[str]:
        """Write that a handler begins and, if it does not raise, that it is done; gives the receipt it must return."""
        receipt = secrets.token_hex(6)
        self._write("begin", ctx)
        yield receipt
        self._write("done", ctx, receipt)

    def sent(self, ctx: Context, job: Job[Any]) -> None:
        """Write that the store accepted the next job."""
        self._write("sent", ctx, job.key or "", str(job.id), duplicate=job.duplicate)

    def fatal(self, ctx: Context) -> None:
        """Write that the process is about to die."""
        self._write("fatal", ctx)

    def _write(self, word: Word, ctx: Context, note: str = "", sent: str = "", *, duplicate: bool = False) -> None:
        self._pen.write(word, str(ctx.job_id), ctx.attempt, self._worker, note, sent, duplicate)


def read(path: Path) -> list[Entry]:
    """Read the whole ledger, oldest line first."""
    return [Entry(*line) for line in lines(path)]
