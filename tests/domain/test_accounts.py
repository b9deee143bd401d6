"""Credits: reserved before a job is stored, spent with its steps, given back at its end, and never overspent."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.domain import accounts, lifecycle
from holdfast.domain.accounts import Charge
from holdfast.domain.errors import InsufficientCredits
from holdfast.domain.job import Account, Flow, JobRecord, NewJob, State
from holdfast.domain.move import Move
from tests.domain.records import FLAKY, HOPELESS, NOW, RETENTION, claimed, in_state, made

LATE = NOW + 1_000_000_000
NEW = NewJob("echo", "{}", tenant="acme", credits=3)


def running(**flow: Any) -> JobRecord:
    return in_state(State.RUNNING)._replace(flow=Flow(**flow))


def charged(job: JobRecord, move: Move) -> Charge | None:
    change = accounts.charge(job, lifecycle.apply(job, move, LATE))
    assert move.charged or not change, "a move that changes the account must say so"
    return change


def test_what_is_available_is_neither_spent_nor_set_aside() -> None:
    assert Account("acme", 10, 3, 4).available == 3


def test_without_an_account_nothing_is_set_aside() -> None:
    assert accounts.reserve([NEW, NEW], None) == [NEW, NEW]


def test_a_group_is_funded_whole_or_not_at_all() -> None:
    account = Account("acme", 10, 2, 2)
    assert accounts.reserve([NEW, NEW], account) == [NEW._replace(reserved=3)] * 2
    with pytest.raises(InsufficientCredits, match="'acme' has 6 credits to spare, and 9 are needed; nothing was"):
        accounts.reserve([NEW] * 3, account)


def test_a_job_that_costs_nothing_needs_no_credits() -> None:
    broke = Account("acme", 0, 0, 0)
    assert accounts.reserve([NEW._replace(credits=0)], broke) == [NEW._replace(credits=0)]
    with pytest.raises(InsufficientCredits):
        accounts.reserve([NEW], broke)


def test_spending_takes_first_what_was_set_aside() -> None:
    job = running(reserved=3, estimate=3)
    assert charged(job, lifecycle.checkpoint(job, "a", None, spend=2)) == Charge(-2, 2)
    assert charged(job, lifecycle.checkpoint(job, "a", None, spend=5)) == Charge(-3, 5)
    assert charged(job, lifecycle.checkpoint(job, "a", None)) is None
    assert charged(job, lifecycle.note(job, "~a", None)) is None


def test_a_job_without_a_reservation_spends_from_the_account() -> None:
    job = in_state(State.RUNNING)
    assert charged(job, lifecycle.checkpoint(job, "a", None, spend=2)) == Charge(0, 2)
    assert charged(job, lifecycle.suspend(job, "~a", None, spend=2)) == Charge(0, 2)
    assert charged(job, lifecycle.complete(job, None, RETENTION, spend=2)) == Charge(0, 2)
    assert charged(job, lifecycle.complete(job, None, RETENTION)) is None


ENDS: dict[str, Callable[[JobRecord], Move]] = {
    "complete": lambda job: lifecycle.complete(job, None, RETENTION),
    "fail": lambda job: lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION),
    "reap": lambda job: lifecycle.reap(job._replace(crashes=2, begun_at=NOW), LATE, RETENTION),
    "cancel": lambda job: lifecycle.settle_cancel(job, RETENTION),
    "undo": lambda job: lifecycle.undo(job, RETENTION),
}


@pytest.mark.parametrize("verb", ENDS)
def test_each_end_gives_back_what_is_left(verb: str) -> None:
    job = running(reserved=3, spent=1, estimate=4)
    if verb == "undo":
        job = running(reserved=3, spent=1, estimate=4, undoes=1, ending="cancelled")
    move = ENDS[verb](job)
    assert charged(job, move) == Charge(-3, 0)
    assert lifecycle.apply(job, move, LATE).flow == Flow(spent=1, estimate=4)


def test_a_waiting_job_that_is_cancelled_gives_back_all() -> None:
    job = made(credits=3, reserved=3)
    assert charged(job, lifecycle.cancel(job, RETENTION)) == Charge(-3, 0)


def test_what_a_last_step_spends_is_not_given_back() -> None:
    job = running(reserved=3)
    assert charged(job, lifecycle.complete(job, None, RETENTION, spend=1)) == Charge(-3, 1)
    assert charged(job, lifecycle.complete(job, None, RETENTION, spend=4)) == Charge(-3, 4)


def test_a_job_that_goes_on_keeps_what_was_set_aside() -> None:
    job = running(reserved=3)
    for move in (
        lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION),
        lifecycle.release(job),
        lifecycle.snooze(job, 1),
        lifecycle.reap(job, LATE, RETENTION),
        lifecycle.cancel(job, RETENTION),
        lifecycle.signal(job, "s", "go", None),
    ):
        assert charged(job, move) is None, move.verb


def test_a_job_that_is_to_be_undone_keeps_what_was_set_aside() -> None:
    job = running(reserved=3, undoes=1)
    assert charged(job, lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)) is None


def test_a_redriven_job_spends_from_the_account() -> None:
    dead = in_state(State.DEAD, credits=3, reserved=3)
    assert dead.flow == Flow(estimate=3)
    redriven = lifecycle.apply(dead, lifecycle.redrive(dead), LATE)
    assert accounts.charge(dead, redriven) is None
    again = claimed(redriven, LATE)
    assert charged(again, lifecycle.checkpoint(again, "a", None, spend=1)) == Charge(0, 1)


@pytest.mark.parametrize(
    ("account", "change", "enough"),
    [
        (Account("", 10, 3, 5), Charge(0, 2), True),
        (Account("", 10, 3, 5), Charge(0, 3), False),
        (Account("", 10, 3, 5), Charge(-3, 5), True),
        (Account("", 10, 3, 5), Charge(-3, 6), False),
        (Account("", 10, 10, 0), Charge(-3, 3), True),
        (Account("", 10, 10, 5), Charge(-3, 3), True),
        (Account("", 10, 10, 5), Charge(-3, 4), False),
        (Account("", 10, 10, 5), Charge(-3, 0), True),
    ],
)
def test_an_account_affords_what_it_has_to_spare(account: Account, change: Charge, enough: bool) -> None:
    assert accounts.affords(account, change) == enough
