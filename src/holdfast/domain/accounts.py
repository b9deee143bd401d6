"""Credits: what a job sets aside in its tenant's account, what a move takes of it, and whether it can.

An account that does not exist asks for nothing: credits are off for tenants that were never granted any.
"""

from typing import NamedTuple

from holdfast.domain.errors import InsufficientCredits
from holdfast.domain.job import MOVING, PLAIN, Account, JobRecord, NewJob, State


def reserve(group: list[NewJob], account: Account | None) -> list[NewJob]:
    """Set credits aside for new jobs of one tenant; without an account nothing is asked of it.

    Raises `InsufficientCredits` if the account does not hold enough for all of them.
    """
    if account is None:
        return group
    asked = sum(new.credits for new in group)
    if asked > account.available:
        who = f"The account of tenant {account.tenant!r}"
        msg = f"{who} has {account.available} credits to spare, and {asked} are needed; nothing was enqueued."
        raise InsufficientCredits(msg)
    return [new._replace(reserved=new.credits) for new in group]


class Charge(NamedTuple):
    """What a move changes in its tenant's account."""

    reserved: int
    spent: int
    granted: int = 0
    """Credits that come or go with a job that moves from store to store."""


def charge(before: JobRecord, after: JobRecord) -> Charge | None:
    """Give the change of the tenant's account that comes with a change of its job."""
    old, new = before.flow or PLAIN, after.flow or PLAIN
    if (old.reserved, old.spent) == (new.reserved, new.spent):
        return None
    left = after.state is State.CANCELLED and new.ending == MOVING
    return Charge(new.reserved - old.reserved, new.spent - old.spent, -old.reserved if left else 0)


def brought(job: JobRecord) -> Charge | None:
    """Give the change of the tenant's account that comes with a job from another store: its credits come with it."""
    reserved = (job.flow or PLAIN).reserved
    return Charge(reserved, 0, reserved) if reserved else None


def affords(account: Account, change: Charge) -> bool:
    """Tell whether an account holds what a change takes of it."""
    return change.reserved + change.spent - change.granted <= max(account.available, 0)
