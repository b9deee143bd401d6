"""How many claims of a crowd are under way at a time.

Every claim begins where a lane's first jobs stand, and passes over those that other claims have in hand and those whose
rows are gone but not yet for everybody. With two hundred workers that was most of the work. A few claims at a time keep
a server as busy as many do, so a worker's claim takes one of a few places while it lasts, or nothing; it never waits in
line, because whoever waits inside a transaction keeps the dead rows in everybody's way.
"""

import zlib

from holdfast.port.store import Claim

_FEWEST, _MOST = 8, 64
_JOBS = 160
"""How many jobs may be in the hands of claims that are under way: the fewer each wants, the more of them there may be,
because jobs are slow then, and the time of a claim is that of its commit.
"""


def places(want: Claim) -> int:
    """Give how many claims like this one may be under way."""
    return max(_FEWEST, min(_JOBS // want.limit, _MOST))


def key(schema: str, want: Claim) -> int:
    """Number the gate of a claim: those that ask for other queues are in nobody's way."""
    queues = "*" if want.queues is None else "\n".join(sorted(want.queues))
    return zlib.crc32(f"{schema}\n{queues}".encode()) - 2**31
