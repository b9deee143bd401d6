"""Races for the last place under a limit."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from functools import partial
from itertools import cycle

from holdfast.domain import lifecycle, limits
from holdfast.domain.job import JobRecord, State
from holdfast.domain.limits import ROOMY, Kept, Limit, Rule
from holdfast.domain.moments import HOUR
from holdfast.domain.move import Move
from holdfast.port.store import Page, Query, Store
from holdfast.testing.lab import RETENTION, Lab
from holdfast.testing.races.start import together

_ROUNDS = 20


def _limit(lab: Lab, queue: str, *asked: Limit) -> None:
    body = limits.encoded(Kept(Rule(queue, limits=asked)))
    assert lab.store.write_page(Page(limits.BOOK, limits.page_name("queue", queue), body), None)


def two_claimers_never_share_the_last_place(lab: Lab) -> None:
    lab.need("limits")
    for number in range(_ROUNDS):
        queue, per = f"q{number}", limits.PER[number % 3]
        _limit(lab, queue, Limit(per, concurrency=3))
        lab.jobs(9, queue=queue, tenant="a", group="x")
        wants = [lab.want(limit, queues={queue: 9}) for limit in (1, 2, 3, 9)]
        stores = cycle([lab.store, lab.other])
        shares = together(*(partial(next(stores).claim, want) for want in wants))
        assert sum(map(len, shares)) == 3
        assert lab.counts()[queue, State.RUNNING] == 3


def two_claimers_never_share_the_last_place_of_a_limit_that_was_far(lab: Lab) -> None:
    lab.need("limits")
    for number in range(_ROUNDS // 5):
        queue = f"q{number}"
        _limit(lab, queue, Limit("tenant", concurrency=ROOMY))
        lab.jobs(ROOMY + 50, queue=queue, tenant="a")
        room = 10 + number
        assert len(lab.claim(ROOMY - room, queues={queue: ROOMY})) == ROOMY - room
        wants = [lab.want(limit, queues={queue: 9}) for limit in (4, 5, 6, 9)]
        stores = cycle([lab.store, lab.other])
        shares = together(*(partial(next(stores).claim, want) for want in wants))
        assert sum(map(len, shares)) == room
        assert lab.counts()[queue, State.RUNNING] == ROOMY


def two_claimers_never_take_the_last_token(lab: Lab) -> None:
    lab.need("limits")
    for number in range(_ROUNDS):
        queue, per = f"q{number}", limits.PER[number % 3]
        _limit(lab, queue, Limit(per, rate=(1, HOUR), burst=2))
        jobs = lab.jobs(6, queue=queue, tenant="a", group="x")
        wants = [lab.want(limit, queues={queue: 9}) for limit in (1, 2, 3)]
        stores = cycle([lab.store, lab.other])
        by_id = lab.want(1, id=jobs[-1].id)
        shares = together(*(partial(next(stores).claim, want) for want in (*wants, by_id)))
        assert sum(map(len, shares)) == 2


def a_reaped_place_is_given_once(lab: Lab) -> None:
    lab.need("limits")
    for number in range(_ROUNDS):
        queue = f"q{number}"
        _limit(lab, queue, Limit("tenant", concurrency=1))
        lab.jobs(3, queue=queue, tenant="a", crash_cap=9)
        [lost] = lab.claim(9, queues={queue: 9})
        lab.lapse()
        reaping = lifecycle.reap(lab.read(lost), lab.clock.now(), RETENTION)
        want, again = lab.want(9, queues={queue: 9}), lab.want(9, queues={queue: 9})

        def reap(move: Move = reaping) -> list[JobRecord]:
            lab.store.commit([move])
            return []

        shares = together(reap, partial(lab.other.claim, want), partial(lab.store.claim, again))
        running = lab.store.find(Query(state=State.RUNNING, queue=queue))
        assert len(running) == sum(map(len, shares)) <= 1
        assert lab.read(lost).state is State.RETRYING or running[0].id == lost.id


def a_settlement_and_a_claim_never_exceed_a_limit(lab: Lab) -> None:
    lab.need("limits")
    for number in range(_ROUNDS):
        queue = f"q{number}"
        _limit(lab, queue, Limit(concurrency=2))
        lab.jobs(6, queue=queue)
        held = lab.claim(9, queues={queue: 9})

        def settle(store: Store, job: JobRecord, name: str = queue) -> list[JobRecord]:
            return store.exchange([lifecycle.complete(job, None, RETENTION)], lab.want(9, queues={name: 9}))[1]

        shares = together(partial(settle, lab.store, held[0]), partial(settle, lab.other, held[1]))
        assert sum(map(len, shares)) == 2
        assert lab.counts()[queue, State.RUNNING] == 2
