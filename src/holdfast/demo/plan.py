"""What the demo sets out to do, and what must become of every job: pure, and the same for the same seed.

A small document archive. Documents are fetched, read (OCR) and indexed, each stage a job that enqueues the next;
customers are told by webhooks, many of which fail at first and some for good; each user gets a summary of the day,
planned by two servers that know nothing of each other. One document kills every process that reads it, and one is in a
format that nobody can read.
"""

import random
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel

from holdfast.domain.job import Cause, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.retry import Retry

STAGES = Retry.fixed(1, retries=3)
CALLS = Retry.exponential(base=0.4, max_attempts=5, jitter=0.1)
SUMMARY_AFTER: Micros = 5 * SECOND
POISON = "water-damaged-scan"
UNREADABLE = "minutes-of-1987"
_PACE = 400
"""Up to this many jobs, each takes its full time; more than that share it."""


class Document(BaseModel):
    """A document on its way into the archive; `misses` is how often fetching it fails before it works."""

    name: str
    format: str = "pdf"
    misses: int = 0
    effort: float


class Call(BaseModel):
    """A webhook to be delivered; the customer's server turns away the first `misses` tries."""

    number: int
    url: str
    misses: int = 0
    effort: float


class Summary(BaseModel):
    """One user's summary of one day."""

    user: int
    day: str


class Fate(NamedTuple):
    """What must become of the job with this key.

    `misses` is how many of its first attempts fail, `delay` how long it waits before the first.
    """

    key: str
    state: State = State.SUCCEEDED
    cause: Cause | None = None
    misses: int = 0
    delay: Micros = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will be asked for."""

    documents: tuple[Document, ...]
    calls: tuple[Call, ...]
    summaries: tuple[Summary, ...]

    def fates(self) -> dict[str, Fate]:
        """Say what must become of every job, by its key: the stages that enqueue each other included."""
        return {fate.key: fate for fate in (*self._stages(), *self._calls(), *self._summaries())}

    def _stages(self) -> list[Fate]:
        fates: list[Fate] = []
        for document in self.documents:
            name = document.name
            fates.append(Fate(f"fetch:{name}", misses=document.misses))
            if name == POISON:
                fates.append(Fate(f"ocr:{name}", State.DEAD, Cause.CRASHED))
            elif name == UNREADABLE:
                fates.append(Fate(f"ocr:{name}", State.DEAD, Cause.REJECTED))
            else:
                fates += [Fate(f"ocr:{name}"), Fate(f"index:{name}")]
        return fates

    def _calls(self) -> list[Fate]:
        return [
            Fate(f"webhook:{call.number}", State.DEAD, Cause.EXHAUSTED, call.misses)
            if call.misses >= CALLS.max_attempts
            else Fate(f"webhook:{call.number}", misses=call.misses)
            for call in self.calls
        ]

    def _summaries(self) -> list[Fate]:
        return [Fate(key_of(summary), delay=SUMMARY_AFTER) for summary in self.summaries]


def key_of(summary: Summary) -> str:
    """Give the key that lets one summary per user and day through."""
    return f"summary:{summary.user}:{summary.day}"


def make(jobs: int, seed: int, day: str) -> Plan:
    """Plan exactly so many jobs; the seed decides which of them go wrong."""
    draw = random.Random(seed)  # noqa: S311 - a plan that can be repeated
    pace = min(1.0, _PACE / jobs)
    summaries = jobs * 6 // 100
    documents = _documents(jobs // 5, draw, pace)
    stages = 3 * len(documents) - 2
    calls = _calls(jobs - summaries - stages, draw, pace)
    return Plan(documents, calls, tuple(Summary(user=user + 1, day=day) for user in range(summaries)))


def _documents(number: int, draw: random.Random, pace: float) -> tuple[Document, ...]:
    documents = [
        Document(
            name=f"{draw.choice(('invoice', 'contract', 'letter', 'report'))}-{n:04}",
            misses=int(draw.random() < 0.08),  # noqa: PLR2004
            effort=draw.uniform(0.1, 0.3) * pace,
        )
        for n in range(1, number + 1)
    ]
    # Early, so that there is time for it to kill one worker after the other.
    documents[2] = Document(name=POISON, format="tiff", effort=0.1)
    documents[number // 2] = Document(name=UNREADABLE, format="wordperfect", effort=0.1)
    return tuple(documents)


def _calls(number: int, draw: random.Random, pace: float) -> tuple[Call, ...]:
    hopeless = max(2, number // 30)
    flaky = number // 4
    misses = (
        [CALLS.max_attempts] * hopeless
        + [draw.choice((1, 1, 2)) for _ in range(flaky)]
        + [0] * (number - hopeless - flaky)
    )
    draw.shuffle(misses)
    return tuple(
        Call(
            number=n,
            url=f"https://customer-{draw.randrange(1, 40)}.example/hook",
            misses=missed,
            effort=draw.uniform(0.05, 0.2) * pace,
        )
        for n, missed in enumerate(misses, 1)
    )
