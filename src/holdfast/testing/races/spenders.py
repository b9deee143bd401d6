"""Races for credits: whoever comes first, an account is never overspent and its books stay exact."""

from functools import partial
from itertools import cycle

from holdfast.domain import lifecycle
from holdfast.domain.errors import InsufficientCredits
from holdfast.domain.job import Account, JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Store
from holdfast.testing.lab import HOPELESS, RETENTION, Lab
from holdfast.testing.races.start import together

_ROUNDS = 30
_TENANT = "acme"


def two_spenders_of_the_last_credits_never_both_win(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        _fill(lab, round_, 3)
        jobs = lab.jobs(2, tenant=_TENANT)
        moves = [lifecycle.checkpoint(lab.take(job), "a", None, spend=2) for job in jobs]
        answers = together(partial(_commit, lab.store, moves[0]), partial(_commit, lab.other, moves[1]))
        assert sorted(answers) == [Answer.OK, Answer.UNPAID]
        assert _left(lab) == 1
        assert sorted(len(lab.store.steps(job.id)) for job in jobs) == [0, 1]


def an_enqueuer_and_a_spender_of_the_last_credits_never_both_win(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        _fill(lab, round_, 3)
        move = lifecycle.complete(lab.running(tenant=_TENANT), None, RETENTION, spend=2)
        [id_] = lab.ids.take(1)
        stored, spent = together(partial(_insert, lab, lab.store, id_), partial(_written, lab.other, move))
        assert stored != spent
        assert _left(lab) == 1
        _clear(lab)


def two_enqueuers_of_the_last_credits_never_both_win(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        _fill(lab, round_, 3)
        left, right = lab.ids.take(2)
        stored = together(partial(_insert, lab, lab.store, left), partial(_insert, lab, lab.other, right))
        assert sorted(stored) == [False, True]
        assert _left(lab) == 1
        _clear(lab)


def a_spawner_and_an_enqueuer_of_the_last_credits_never_both_win(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        _fill(lab, round_, 3)
        job = lab.running(tenant=_TENANT)
        child, id_ = lab.ids.take(2)
        children = ((child, lab.new(tenant=_TENANT, parent=job.id, credits=2)),)
        move = lifecycle.suspend(job, "~gather", None, awaits="go", children=children)
        spawned, stored = together(partial(_written, lab.store, move), partial(_insert, lab, lab.other, id_))
        assert spawned != stored
        assert [found is not None for found in lab.store.read([child, id_])] == [spawned, stored]
        assert _left(lab) == 1
        _clear(lab)


def credits_taken_back_are_not_spent(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        _fill(lab, round_, 3)
        move = lifecycle.checkpoint(lab.running(tenant=_TENANT), "a", None, spend=2)
        taken, spent = together(
            partial(_took_back, lab.store, f"back {round_}"),
            partial(_written, lab.other, move),
        )
        assert taken != spent
        assert _left(lab) == 1


def a_grant_sent_twice_counts_once(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        grants = together(
            partial(lab.store.grant, _TENANT, 1, f"g {round_}"), partial(lab.other.grant, _TENANT, 1, f"g {round_}")
        )
        assert grants == [Account(_TENANT, round_ + 1, 0, 0)] * 2
    assert len(lab.store.entries(_TENANT, 100)) == _ROUNDS


def a_crowd_never_overspends(lab: Lab) -> None:
    lab.store.grant(_TENANT, 60, "g-1")
    lab.store.grant("other", 1_000, "g-1")

    def spend(store: Store, ids: list[str]) -> list[tuple[str, int]]:
        """Enqueue, spend more than was set aside, and end in one way or the other; give what was spent."""
        spent: list[tuple[str, int]] = []
        for n, id_ in enumerate(ids):
            tenant = "other" if n % 4 == 0 else _TENANT
            [answer] = store.insert([[(id_, lab.new(tenant=tenant, credits=2))]])
            if isinstance(answer, InsufficientCredits):
                continue
            [job] = store.claim(lab.want(id=id_))
            moves = [lifecycle.checkpoint(job, f"s{step}", None, spend=1 + n % 3) for step in range(2)]
            spent += [(tenant, move.spend) for move in moves if _commit(store, move) is Answer.OK]
            [now] = store.read([id_])
            assert now is not None
            assert _commit(store, _end(now, n)) is Answer.OK
        return spent

    stores = cycle([lab.store, lab.other])
    shares = together(*(partial(spend, next(stores), lab.ids.take(24)) for _ in range(4)))
    for account in lab.store.accounts():
        total = sum(amount for share in shares for tenant, amount in share if tenant == account.tenant)
        assert (account.reserved, account.spent) == (0, total)
        assert account.available >= 0
        entries = lab.store.entries(account.tenant, 10_000)
        assert sum(entry.spent for entry in entries) == total
        assert sum(entry.reserved for entry in entries) == 0
        running = 0
        for entry in reversed(entries):
            running += entry.granted - entry.reserved - entry.spent
            assert running >= 0, "overspent for a moment"
    assert list(lab.store.check()) == []


def _end(job: JobRecord, number: int) -> Move:
    if number % 2:
        return lifecycle.complete(job, None, RETENTION)
    return lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)


def _fill(lab: Lab, round_: int, credits_: int) -> None:
    """Bring the account to so many credits to spare."""
    account = lab.store.account(_TENANT)
    lab.store.grant(_TENANT, credits_ - (account.available if account else 0), f"fill {round_}")


def _left(lab: Lab) -> int:
    account = lab.store.account(_TENANT)
    assert account is not None
    return account.available


def _clear(lab: Lab) -> None:
    """End whatever waits, so that nothing stays set aside."""
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in lab.claim(10)])


def _insert(lab: Lab, store: Store, id_: str) -> bool:
    [answer] = store.insert([[(id_, lab.new(tenant=_TENANT, credits=2))]])
    return isinstance(answer, list)


def _took_back(store: Store, id_: str) -> bool:
    return store.grant(_TENANT, -2, id_) is not None


def _written(store: Store, move: Move) -> bool:
    return _commit(store, move) is Answer.OK


def _commit(store: Store, move: Move) -> Answer:
    [answer] = store.commit([move])
    return answer
