"""Seeing what is there: reads, lists, counts, workers, roles, and waiting for work."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

import threading
from collections import Counter
from collections.abc import Callable

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.domain.move import Answer
from holdfast.port.store import Query, Store, WorkerRecord
from holdfast.testing.lab import DELAY, FLAKY, RETENTION, Lab

_PATIENCE = 30.0
_TRIES = 20


def reads_come_in_the_order_asked(lab: Lab) -> None:
    first, second, third = lab.jobs(3)
    [nowhere] = lab.ids.take(1)
    asked = [third.id, nowhere, first.id, third.id, second.id]
    assert lab.store.read(asked) == [third, None, first, third, second]
    assert lab.store.read([]) == []


def find_lists_newest_first(lab: Lab) -> None:
    jobs = lab.jobs(3)
    lab.clock.advance(seconds=1)
    jobs += lab.jobs(3)
    assert lab.store.find(Query()) == jobs[::-1]


def find_keeps_to_each_filter(lab: Lab) -> None:
    jobs = [
        lab.job(),
        lab.job(kind="other"),
        lab.job(queue="mail"),
        lab.job(tenant="acme", key="k"),
        lab.job(key="k"),
        lab.job(tenant="it's", key="k'"),
        lab.in_state(State.RETRYING),
        lab.in_state(State.DEAD, tenant="acme"),
        lab.in_state(State.SUCCEEDED, queue="mail", kind="other"),
        lab.in_state(State.RUNNING),
        lab.in_state(State.CANCELLED),
        lab.in_state(State.CREATED),
    ]
    wishes: list[tuple[Query, Callable[[JobRecord], bool]]] = [
        *((Query(state=state), lambda job, state=state: job.state is state) for state in State),
        (Query(kind="other"), lambda job: job.kind == "other"),
        (Query(queue="mail"), lambda job: job.queue == "mail"),
        (Query(tenant="acme"), lambda job: job.tenant == "acme"),
        (Query(tenant=""), lambda job: job.tenant == ""),
        (Query(tenant="it's"), lambda job: job.tenant == "it's"),
        (Query(error_code="flaky"), lambda job: job.failure_code == "flaky"),
        (Query(key="k"), lambda job: job.key == "k"),
        (Query(key="k", tenant="acme"), lambda job: job.key == "k" and job.tenant == "acme"),
        (Query(state=State.DEAD, tenant="acme", error_code="hopeless"), lambda job: job.state is State.DEAD),
        (Query(state=State.QUEUED, queue="mail", kind="echo"), lambda job: job == jobs[2]),
        (Query(kind="nothing"), lambda _: False),
    ]
    for query, matches in wishes:
        assert lab.store.find(query) == [job for job in reversed(jobs) if matches(job)], query


def find_turns_pages(lab: Lab) -> None:
    jobs = lab.jobs(7)
    lab.jobs(2, queue="mail")
    pages, before = [], None
    while page := lab.store.find(Query(queue="default", before=before, limit=3)):
        pages.append(page)
        before = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [job for page in pages for job in page] == jobs[::-1]


def a_page_may_start_after_a_job_that_is_gone(lab: Lab) -> None:
    jobs = lab.jobs(3)
    [gone] = lab.ids.take(1)
    lab.jobs(1)
    assert lab.store.find(Query(before=gone)) == jobs[::-1]


def counts_equal_a_recount_after_every_kind_of_change(lab: Lab) -> None:
    lab.need("exact_counts")
    for state in State:
        lab.in_state(state, queue="mail", crash_cap=1)
        _recounted(lab)
    lab.jobs(20)
    claimed = lab.claim(9, queues={"default": 9})
    _recounted(lab)
    moves = [lifecycle.complete(job, None, RETENTION) for job in claimed[:3]]
    lab.store.commit([*moves, lifecycle.release(claimed[3]), *moves, lifecycle.settle_cancel(claimed[4], RETENTION)])
    _recounted(lab)
    lab.store.exchange([lifecycle.release(claimed[5])], lab.want(4))
    _recounted(lab)
    lab.lapse()
    lab.reap()
    _recounted(lab)
    lab.done(lifecycle.redrive(lab.store.find(Query(state=State.DEAD))[0]))
    _recounted(lab)
    lab.clock.advance(microseconds=RETENTION.dead)
    assert lab.store.purge(2).jobs == 2
    _recounted(lab)
    assert lab.store.purge(1_000).jobs > 2
    _recounted(lab)
    assert list(lab.store.check()) == []


def counts_equal_a_recount_when_new_jobs_and_tried_ones_are_taken_together(lab: Lab) -> None:
    lab.need("exact_counts")
    lab.jobs(4)
    lab.store.commit([lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION) for job in lab.claim(4)])
    lab.clock.advance(hours=1)
    lab.jobs(8, priority=-1)
    held: list[JobRecord] = []
    for _ in range(6):
        moves = [lifecycle.complete(job, None, RETENTION) for job in held]
        answers, held = lab.store.exchange(moves, lab.want(2, queues={"default": 9}))
        assert (answers, len(held)) == ([Answer.OK] * len(moves), 2)
        _recounted(lab)
    assert list(lab.store.check()) == []


def a_refused_or_repeated_insert_is_not_counted(lab: Lab) -> None:
    lab.need("exact_counts")
    [id_] = lab.ids.take(1)
    group = [(id_, lab.new(key="k"))]
    lab.store.insert([group])
    lab.store.insert([group, [(lab.ids.take(1)[0], lab.new()), (lab.ids.take(1)[0], lab.new(key="k", payload="2"))]])
    assert lab.counts() == {("default", State.QUEUED): 1}


def workers_are_listed_while_they_are_alive(lab: Lab) -> None:
    now = lab.clock.now()
    ada = WorkerRecord("ada", "höst", 7, ("mail", "default"), ("echo", "it's"), 50, now, now, now + MINUTE, 3)
    bob = WorkerRecord("bob", "host", 8, None, (), 1, now, now, now + SECOND, 0)
    lab.store.enlist(ada)
    lab.store.enlist(bob)
    assert sorted(lab.other.workers()) == [ada, bob]
    lab.clock.advance(seconds=1)
    assert lab.store.workers() == [ada]
    later = ada._replace(beat_at=now + SECOND, expires_at=now + 2 * MINUTE, running=9)
    lab.store.enlist(later)
    lab.clock.advance(minutes=1)
    assert lab.store.workers() == [later]
    lab.store.dismiss("ada")
    lab.store.dismiss("nobody")
    assert lab.store.workers() == []


def one_owner_leads_a_role_until_its_term_ends(lab: Lab) -> None:
    assert lab.store.lead("upkeep", "ada", MINUTE)
    assert not lab.other.lead("upkeep", "bob", MINUTE)
    assert lab.other.lead("reports", "bob", MINUTE)
    lab.clock.advance(seconds=30)
    assert lab.store.lead("upkeep", "ada", MINUTE), "a leader may keep its role"
    lab.clock.advance(seconds=59)
    assert not lab.other.lead("upkeep", "bob", MINUTE)
    lab.clock.advance(seconds=1)
    assert lab.other.lead("upkeep", "bob", MINUTE)
    assert not lab.store.lead("upkeep", "ada", MINUTE)


def a_leader_may_step_down(lab: Lab) -> None:
    assert lab.store.lead("upkeep", "ada", MINUTE)
    assert lab.store.lead("upkeep", "ada", 0)
    assert lab.store.lead("upkeep", "bob", MINUTE)


def next_due_is_when_the_next_claim_can_succeed(lab: Lab) -> None:
    now = lab.clock.now()
    assert lab.store.next_due(None) is None
    lab.job(state=State.CREATED)
    lab.job(queue="mail", delay=9 * SECOND)
    soon = lab.job(queue="web", delay=3 * SECOND)
    assert lab.store.next_due(None) == now + 3 * SECOND
    assert lab.store.next_due(["mail"]) == now + 9 * SECOND
    assert lab.store.next_due(["web", "mail"]) == now + 3 * SECOND
    assert lab.store.next_due(["default"]) is None
    lab.store.pause("web")
    assert lab.store.next_due(None) == now + 9 * SECOND
    assert lab.store.next_due(["web"]) is None
    lab.store.resume("web")
    lab.clock.advance(seconds=5)
    assert lab.store.next_due(None) == now + 5 * SECOND, "what is due already is due now"
    lab.take(soon)
    assert lab.store.next_due(None) == now + 9 * SECOND


def due_since_is_when_the_longest_waiting_job_of_each_queue_came_due(lab: Lab) -> None:
    now = lab.clock.now()
    assert lab.store.due_since() == {}
    lab.job(queue="web", delay=3 * SECOND)
    urgent = lab.job(queue="mail", priority=5, delay=2 * SECOND)
    lab.job(queue="mail", delay=1 * SECOND)
    lab.job(queue="later", delay=MINUTE)
    lab.job(queue="gone", expires_after=2 * SECOND)
    assert lab.store.due_since() == {"gone": now}
    lab.clock.advance(seconds=5)
    due = {"web": now + 3 * SECOND, "mail": now + 1 * SECOND}
    assert lab.store.due_since() == due, "what is not due, or can no longer be claimed, is left out"
    lab.take(urgent)
    assert lab.store.due_since() == due, "whichever went, the other has waited longest"
    lab.store.pause("web")
    assert lab.store.due_since() == {"mail": now + 1 * SECOND}


def next_due_counts_retries_and_leaves_out_what_expired(lab: Lab) -> None:
    failed = lab.in_state(State.RETRYING)
    assert lab.store.next_due(None) == lab.clock.now() + DELAY
    lab.done(lifecycle.cancel(failed, RETENTION))
    lab.job(expires_after=SECOND)
    assert lab.store.next_due(None) == lab.clock.now()
    lab.clock.advance(seconds=1)
    assert lab.store.next_due(None) is None


def waiting_ends_when_a_job_is_inserted(lab: Lab) -> None:
    _woken(lab.store, lambda: lab.other.insert([[(lab.ids.take(1)[0], lab.new(queue="mail"))]]))


def waiting_ends_when_a_job_is_given_back(lab: Lab) -> None:
    lab.jobs(_TRIES, queue="mail")
    held = lab.claim(_TRIES)
    _woken(lab.store, lambda: lab.other.commit([lifecycle.release(held.pop())]))


def waiting_ends_when_a_signal_wakes_a_job(lab: Lab) -> None:
    lab.jobs(_TRIES, queue="mail")
    waiting = [lab.done(lifecycle.suspend(job, "~wait", None, awaits="go")) for job in lab.claim(_TRIES)]
    _woken(lab.store, lambda: lab.other.commit([lifecycle.signal(waiting.pop(), "s-1", "go", None)]))


def waiting_ends_when_a_child_is_spawned(lab: Lab) -> None:
    lab.jobs(_TRIES, queue="web")
    held = lab.claim(_TRIES)

    def spawn() -> None:
        job = held.pop()
        child = (lab.ids.take(1)[0], lab.new(queue="mail", parent=job.id))
        lab.other.commit([lifecycle.suspend(job, "~gather", None, awaits="children", children=(child,))])

    _woken(lab.store, spawn)


def waiting_ends_when_a_queue_is_resumed(lab: Lab) -> None:
    lab.job(queue="mail")

    def change() -> None:
        lab.other.pause("mail")
        lab.other.resume("mail")

    _woken(lab.store, change)


def waiting_ends_when_woken(lab: Lab) -> None:
    _woken(lab.store, lab.store.wake)


def waiting_ends_by_itself(lab: Lab) -> None:
    assert lab.store.wait(["mail"], 0.0) in (True, False)
    assert not lab.store.wait(["mail"], 0.01)


def _recounted(lab: Lab) -> None:
    found = lab.store.find(Query(limit=10_000))
    assert lab.counts() == Counter((job.queue, job.state) for job in found)


def _woken(store: Store, change: Callable[[], object]) -> None:
    """Show that a waiter returns long before its timeout.

    A change made before the waiter is in place is none of its business, so the change is made again until it is heard.
    """
    left = threading.Event()

    def wait() -> None:
        store.wait(["mail"], _PATIENCE)
        left.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    for _ in range(_TRIES):
        change()
        if left.wait(0.1):
            break
    heard = left.is_set()
    store.wake()
    waiter.join(_PATIENCE)
    assert heard, "the waiter slept through every change"
