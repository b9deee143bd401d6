"""What a URL says: `dynamodb://TABLE` or `dynamodb+sqs://TABLE/QUEUE`, where they are, and how they are worked on."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from holdfast.domain.errors import BadInput
from holdfast.domain.moments import SECOND, Micros

CONTRACT = "dynamodb+sqs"
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_MAX_SHARDS = 100
_PAGE = 25
_POLL = 30.0
_SKEW = 2.0
_SHARDS = 4
_GRACE = 30.0
_LOST = 900.0


class Address(NamedTuple):
    """Where the jobs are."""

    table: str
    side: str
    """The table of all that is not a job: the same, unless the jobs' table is keyed by jobs alone."""
    queue: str | None = None
    """The queue of SQS that calls workers; None if they look for themselves."""
    dlq: str | None = None
    """The queue of SQS that holds the messages of dead jobs."""
    region: str | None = None
    endpoint: str | None = None
    shards: int = 1
    """How many partitions the jobs (or the entries of the indexes that they are found by) are spread over."""
    page: int = _PAGE
    """How many jobs a look for work reads at the least; within them the best go first. With a queue it is 0, unless
    the URL says otherwise: jobs are then taken as SQS brings them.
    """
    poll: float = _POLL
    """The most seconds between two looks of an idle worker."""
    skew: Micros = round(_SKEW * SECOND)
    """By how much the clocks of two workers may differ: a lease counts as over only this long after its end."""
    grace: Micros = round(_GRACE * SECOND)
    """How long a message may be owed before upkeep sends it."""
    lost: Micros = round(_LOST * SECOND)
    """How long a due job may wait, although its message was sent, before upkeep sends another."""

    @property
    def emulated(self) -> bool:
        """Tell whether this is an emulator on this machine, where tables cost nothing."""
        return self.endpoint is not None and urlsplit(self.endpoint).hostname in _LOOPBACK

    @property
    def shown(self) -> str:
        """The address as it may be printed."""
        where = f"dynamodb://{self.table}" if self.queue is None else f"{CONTRACT}://{self.table}/{self.queue}"
        return where + (f" at {self.endpoint}" if self.endpoint else "")


def parse(url: str) -> Address:
    """Read a URL such as `dynamodb://jobs?region=eu-central-1&shards=4`."""
    rest, _, query = url.partition("://")[2].partition("?")
    if url.startswith(f"{CONTRACT}:"):
        table, _, queue = rest.partition("/")
        address = Address(table, f"{table}-holdfast", queue, f"{queue}-dlq", shards=_SHARDS, page=0)
    else:
        table, queue = rest.strip("/"), None
        address = Address(table, table)
    if not _TABLE.fullmatch(table):
        form = "dynamodb://TABLE?region=REGION" if queue is None else f"{CONTRACT}://TABLE/QUEUE?region=REGION"
        made = "3 to 255 letters, digits, '_', '-' or '.'"
        msg = f"{table!r} is not the name of a DynamoDB table ({made}); write {form}."
        raise BadInput(msg)
    if queue is not None and not _QUEUE.fullmatch(queue):
        made, form = "1 to 80 letters, digits, '_' or '-'", f"{CONTRACT}://TABLE/QUEUE?region=REGION"
        msg = f"{queue!r} is not the name of an SQS queue ({made}); write {form}."
        raise BadInput(msg)
    for name, text in parse_qsl(query, keep_blank_values=True):
        address = _with(address, name, text)
    return address


def _with(address: Address, name: str, text: str) -> Address:
    """Read one option."""
    seconds = ("poll", "skew") if address.queue is None else ("skew", "grace", "lost")
    match name:
        case "region" if text:
            return address._replace(region=text)
        case "endpoint" if urlsplit(text).hostname:
            return address._replace(endpoint=text.rstrip("/"))
        case "dlq" if address.queue is not None and _QUEUE.fullmatch(text):
            return address._replace(dlq=text)
        case "shards":
            return address._replace(shards=_whole(name, text, 1, _MAX_SHARDS))
        case "page":
            return address._replace(page=_whole(name, text, 1 if address.queue is None else 0, 1_000))
        case _ if name in seconds:
            return _timed(address, name, _seconds(name, text))
        case _:
            pass
    known = ["region", "endpoint", *(["dlq"] if address.queue is not None else []), "shards", "page", *seconds]
    if name in known:
        msg = f"The option {name} of a DynamoDB URL cannot be {text!r}."
    else:
        msg = f"A DynamoDB URL has no option {name!r}; it takes {', '.join(known[:-1])} and {known[-1]}."
    raise BadInput(msg)


def _timed(address: Address, name: str, seconds: float) -> Address:
    micros = round(seconds * SECOND)
    match name:
        case "poll":
            return address._replace(poll=seconds)
        case "skew":
            return address._replace(skew=micros)
        case "grace":
            return address._replace(grace=micros)
        case _:
            return address._replace(lost=micros)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        msg = f"The option {name} of a DynamoDB URL must be a whole number from {least} to {most}, not {text!r}."
        raise BadInput(msg)
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3_600:  # noqa: PLR2004 - an hour
        msg = f"The option {name} of a DynamoDB URL must be seconds from 0 to 3600, not {text!r}."
        raise BadInput(msg)
    return seconds
