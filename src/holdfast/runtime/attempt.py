"""One attempt in a worker's hands, from claim to settlement."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from holdfast.client.asking import Script
from holdfast.client.context import CURRENT_STEP
from holdfast.client.durable import Durable, Stage
from holdfast.client.registry import Kind
from holdfast.domain.errors import BadInput
from holdfast.domain.job import JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.transaction import Transaction

_NONE: dict[str, Transaction] = {}
"""What nearly every attempt has within its steps; never changed but replaced."""


class Stop(StrEnum):
    """Why an attempt must stop before its handler is done."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    """The lease is gone, or may be: nothing more may be written."""
    RELEASE = "release"
    """The worker is leaving and gives the job back."""


class Attempt:
    """A claimed job and what this worker knows about running it."""

    __slots__ = (
        "abandoned",
        "answer",
        "began",
        "begun",
        "durable",
        "error",
        "job",
        "kind",
        "last",
        "outcome",
        "progress",
        "renewed",
        "runner",
        "script",
        "settled",
        "span",
        "stage",
        "stop",
        "stopped_at",
        "transact",
        "transaction",
        "within",
        "written",
    )

    def __init__(self, job: JobRecord, kind: Kind | None, renewed: float) -> None:
        self.job = job
        self.kind = kind
        self.renewed = renewed
        """Monotonic time at which the last renewal that the store accepted was sent."""
        self.begun = False
        self.settled = False
        """Set once an outcome has been handed in; whoever comes later hands in nothing."""
        self.outcome: Move | None = None
        """What is handed in, until it has been answered; None if nothing may be written."""
        self.abandoned = False
        """Set when the attempt was settled although its handler does not stop: its slot has been given to another."""
        self.stop: Stop | None = None
        self.stopped_at = 0.0
        self.runner: object = None
        """What runs the handler now: a thread's id, a task or a child process."""
        self.transact: Callable[[], Transaction] | None = None
        """Where a transaction for the handler comes from."""
        self.transaction: Transaction | None = None
        """The transaction the handler asked for."""
        self.within: dict[str, Transaction] = _NONE
        """Those that the bodies of steps asked for, until each is committed with its step's record."""
        self.stage: Stage | None = None
        """Where the handler's steps are done, if it can have any."""
        self.durable: Durable | None = None
        self.script: Script[Any] | None = None
        """A pipeline under way."""
        self.written: Move | None = None
        """The record it was left at, until it has been answered."""
        self.answer: Answer | None = None
        self.last: Move | None = None
        """The record of its last step, until that is joined with the end of the job or written."""
        self.progress: str | None = None
        """How far the handler says it is, until the store has been told."""
        self.began = 0.0
        """Monotonic time at which the handler began, if anybody watches."""
        self.error: BaseException | None = None
        """What the handler raised, if anybody watches, until its end is written."""
        self.span: object = None
        """The span of the attempt, while it runs and is traced."""

    def begin(self) -> Transaction:
        """Give the handler its transaction, or the body of a step that step's; the same one if it asks again."""
        step = CURRENT_STEP.get()
        begun = self.transaction if step is None else self.within.get(step)
        if begun is not None:
            return begun
        if self.transact is None:
            msg = "ctx.transaction() is for handlers that run in the worker's own process, not in one of their own."
            raise BadInput(msg)
        begun = self.transact()
        if step is None:
            self.transaction = begun
        else:
            self.within = {**self.within, step: begun}
        return begun

    def left_open(self, move: Move) -> Transaction | None:
        """Hand over the transaction that the body of a step has left open, to be committed with the step's record."""
        transaction = self.within.pop(move.step, None) if self.within and move.step is not None else None
        return transaction if transaction is not None and transaction.open else None

    def undo(self) -> None:
        """Undo all that was left open in transactions."""
        self.undo_steps()
        if self.transaction is not None:
            self.transaction.rollback()

    async def aundo(self) -> None:
        """Asynchronous twin of `undo`."""
        await self.aundo_steps()
        if self.transaction is not None:
            await self.transaction.arollback()

    def undo_steps(self, step: str | None = None) -> None:
        """Undo what the body of a step has left open that is not recorded; or those of all steps."""
        for name in list(self.within) if step is None else (step,):
            if name in self.within:
                self.within.pop(name).rollback()

    async def aundo_steps(self, step: str | None = None) -> None:
        """Asynchronous twin of `undo_steps`."""
        for name in list(self.within) if step is None else (step,):
            if name in self.within:
                await self.within.pop(name).arollback()

    def workflow(self) -> Durable:
        """Give the handler its steps."""
        if self.durable is None:
            if self.stage is None:
                msg = "Steps, sleeps and children are for handlers that run in the worker's own process."
                raise BadInput(msg)
            self.durable = Durable(self.stage)
        return self.durable

    @property
    def spend(self) -> int:
        """The credits that the handler has spent and that are not on record yet."""
        return 0 if self.stage is None else self.stage.spend

    @property
    def stopping(self) -> bool:
        """Whether the handler has been asked to stop."""
        return self.stop is not None
