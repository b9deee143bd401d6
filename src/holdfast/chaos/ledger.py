"""The ledger of a chaos run: what bodies really did and what was refused, outside the store and out of every fault's
reach.

One line per event (see `demo.ledger`), in the order in which things happened on this machine: whoever writes later
stands later, so that the checker compares places and never clocks.
"""

from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.client.context import Context
from holdfast.demo.ledger import Pen, lines
from holdfast.domain.moments import Micros

Word = Literal["begin", "done", "refused", "lost"]


class Entry(NamedTuple):
    """One line. `step` is empty for a whole job.

    `note` is for `begin` the result of the step before, as the body was given it; for `done` what the body returns; for
    `refused` the verb.
    """

    at: Micros
    word: Word
    job: str
    token: int
    step: str
    worker: str
    note: str = ""


class Ledger:
    """One worker process's own pen."""

    def __init__(self, path: Path, worker: str) -> None:
        self._pen = Pen(path)
        self._worker = worker

    def begin(self, ctx: Context, step: str = "", given: str = "") -> None:
        """Write that a body begins."""
        self.write("begin", str(ctx.job_id), _token(ctx), step, given)

    def done(self, ctx: Context, result: str, step: str = "") -> str:
        """Write that a body is done; give what it returns."""
        self.write("done", str(ctx.job_id), _token(ctx), step, result)
        return result

    def write(self, word: Word, job: str, token: int, step: str = "", note: str = "") -> None:
        """Write a line."""
        self._pen.write(word, job, token, step, self._worker, note)


def read(path: Path) -> list[Entry]:
    """Read the whole ledger, oldest line first."""
    return [Entry(*line) for line in lines(path)]


def _token(ctx: Context) -> int:
    return ctx._job.token  # noqa: SLF001 - handlers have no use for the token; who checks on the lease has
