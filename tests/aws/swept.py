"""The store of the contract under a clock that only the test moves.

SQS goes by its own clock, so a message for a job that comes due when the test says so is late. What is late is sent by
upkeep; here it makes its round within every claim that SQS has too little for, and waits for nothing (`grace` and
`lost` are 0).
"""

from collections import Counter
from collections.abc import Sequence

from holdfast.domain.job import JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim
from holdfast.stores.dynamodb import ContractStore

AT_ONCE = {"grace": 0, "lost": 0}
"""The options of a URL for this."""


class Swept(ContractStore):
    """A store whose upkeep is always just done."""

    def claim(self, want: Claim) -> list[JobRecord]:
        """Claim; if there is room for more, make a round of upkeep and claim again."""
        return self._topped(super().claim(want), want)

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim; if there is room for more, make a round of upkeep and claim again."""
        answers, claimed = super().exchange(moves, want)
        return answers, self._topped(claimed, want)

    def _topped(self, claimed: list[JobRecord], want: Claim) -> list[JobRecord]:
        if want.id is not None or len(claimed) >= want.limit:
            return claimed
        self.sweep(10_000)
        got = Counter(job.queue for job in claimed)
        queues = None if want.queues is None else {name: most - got[name] for name, most in want.queues.items()}
        return claimed + super().claim(want._replace(limit=want.limit - len(claimed), queues=queues))
