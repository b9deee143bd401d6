"""Credits spent by eight processes that are killed with -9 at any moment: never overspent, and exact at the end.

`HOLDFAST_CHAOS_KILLS` chooses the form: 1,000 spends and 4 kills, or, from 50 on, 20,000 spends and 60 kills.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.chaos import flows
from tests.chaos.yard import FULL, Yard, opened

JOBS, KILLS = (2_000, 60) if FULL else (100, 4)
CREW = 8
COST = sum(flows.cost(place) for place in range(flows.SPENDS))
ESTIMATE = COST // 2
POOR = JOBS // 4
"""So many jobs belong to a tenant whose account does not hold enough for all of them."""


@pytest.fixture(params=["sqlite", "postgres"])
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    with closing(opened(request, tmp_path)) as yard:
        yield yard


@contextmanager
def watched(url: str) -> Iterator[list[str]]:
    """Look at the accounts again and again; give a list of what was wrong."""
    wrong: list[str] = []
    looks: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        with closing(Holdfast(url)) as app:
            while not ended.wait(0.005):
                looks.append(1)
                wrong.extend(
                    str(account)
                    for account in app.accounts()
                    if account.spent + account.reserved > account.granted or min(account[1:]) < 0
                )

    def guarded() -> None:
        try:
            watch()
        except Exception as error:  # noqa: BLE001 - told to the test
            wrong.append(repr(error))

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield wrong
    finally:
        ended.set()
        thread.join()
    assert len(looks) > 50


def test_credits_are_never_overspent_and_exact_at_the_end(yard: Yard) -> None:
    app = yard.app
    app.grant("rich", COST * (JOBS - POOR))
    app.grant("poor", ESTIMATE * POOR + COST)
    ways = {tenant: {"tenant": tenant, "credits": ESTIMATE} for tenant in ("rich", "poor")}
    tenants = ["poor" if n % 4 == 0 else "rich" for n in range(JOBS)]
    jobs = app.enqueue_many([app.prepare("spender", {}, **ways[tenant]) for tenant in tenants])
    with watched(yard.url) as wrong:
        yard.hire(CREW, "-c", "4")
        for kill in range(KILLS):
            share = JOBS - JOBS * (kill + 1) // (KILLS * 2)
            yard.until(lambda share=share: yard.unfinished() <= share, "progress")  # type: ignore[misc]
            yard.replace_one("-c", "4")
        yard.until(lambda: not yard.unfinished(), "the end", 300)
    assert wrong == []
    assert yard.killed_at_work == KILLS
    spent = {"rich": 0, "poor": 0}
    for tenant, job in zip(tenants, jobs, strict=True):
        steps = [step.name for step in job.steps()]
        paid = sum(flows.cost(int(name[1:])) for name in steps)
        assert len(steps) == len(set(steps))
        assert (job.refresh().credits_spent, job.credits_reserved) == (paid, 0)
        assert tenant == "poor" or (job.state, paid) == ("succeeded", COST)
        spent[tenant] += paid
    assert spent["rich"] == COST * (JOBS - POOR)
    for tenant, total in spent.items():
        account, entries = app.account(tenant), app.ledger(tenant, 1_000_000)
        assert account is not None
        assert (account.reserved, account.spent) == (0, total)
        assert account.granted == sum(entry.granted for entry in entries)
        assert (sum(entry.reserved for entry in entries), sum(entry.spent for entry in entries)) == (0, total)
        charged = [(entry.job_id, entry.generation, entry.step) for entry in entries if entry.spent]
        assert len(charged) == len(set(charged)), "a step was paid for twice"
    yard.assert_sound()
