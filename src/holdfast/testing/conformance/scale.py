"""Keeping everything: any payload, large batches, and what was acknowledged before a restart."""

import json
from dataclasses import replace

import pytest

from holdfast.domain import events, lifecycle
from holdfast.domain.codec import MAX_BYTES, MAX_DEPTH
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import Failure, Flow, State
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Answer, Held
from holdfast.port.store import Beat, Query, ScheduleRecord
from holdfast.testing.lab import LEASE, RETENTION, Lab, Stored

_TEXTS = [
    "null",
    "{}",
    "[]",
    '""',
    "0",
    "-9223372036854775808",
    "9223372036854775807",
    "1.7976931348623157e308",
    "5e-324",
    '{"b": 1,  "a" : [ 2 ]}',
    json.dumps('it\'s "quoted"; DROP TABLE job; -- %s %(x)s ? :x $1 {} \\ / \t\r\n'),
    json.dumps("Ünïcödé 漢字 عربى 🦀👩‍👩‍👧 \u2028\u2029\ufeff\uffff", ensure_ascii=False),
    json.dumps("Ünïcödé 漢字 🦀 \x01\x1f\x7f"),
    json.dumps({"ключ": {"": None, " ": True, "a.b": [False, 0.1, "x" * 999]}}, ensure_ascii=False),
    "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    '{"k":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH,
    json.dumps("x" * 200 * 1024),
    json.dumps("é" * (MAX_BYTES // 2 - 1), ensure_ascii=False),
]


def every_payload_comes_back_unchanged(lab: Lab) -> None:
    jobs = [lab.job(payload=text) for text in _TEXTS]
    assert [job.payload for job in jobs] == _TEXTS
    assert [lab.read(job).payload for job in jobs] == _TEXTS
    claimed = sorted(lab.claim(100), key=lambda job: job.id)
    assert [job.payload for job in claimed] == _TEXTS
    assert [job.payload for job in lab.store.find(Query(limit=100))] == _TEXTS[::-1]


def every_result_step_and_message_comes_back_unchanged(lab: Lab) -> None:
    for text in _TEXTS:
        job = lab.running()
        lab.done(lifecycle.checkpoint(job, text[:99], text))
        assert [(step.name, step.result) for step in lab.store.steps(job.id)] == [(text[:99], text)]
        assert lab.done(lifecycle.complete(job, text, RETENTION)).result == text
        failure = Failure("code", text, retryable=False)
        lab.done(lifecycle.fail(lab.running(), failure, draw=0, retention=RETENTION, traceback=text))


def every_name_comes_back_unchanged(lab: Lab) -> None:
    names = ["a", "A", "a ", "it's", '"', "%", "_", "ключ", "🦀", "a/b:c.d#1", "x" * 255]
    jobs = [lab.job(kind=n, queue=n, tenant=n, user=n, trace_id=n, key=n, trigger="webhook") for n in names]
    for name, job in zip(names, jobs, strict=True):
        assert lab.store.find(Query(kind=name, queue=name, tenant=name, key=name)) == [job]
        assert [claimed.id for claimed in lab.claim(99, queues={name: 9})] == [job.id]


def the_widest_numbers_are_kept(lab: Lab) -> None:
    for priority in (-(2**31), 2**31 - 1):
        assert lab.read(lab.job(priority=priority)).priority == priority


def thousands_of_jobs_go_through_in_large_batches(lab: Lab) -> None:
    jobs = lab.jobs(2_000)
    claimed = [job for size in (700, 1, 999, 600) for job in lab.claim(size)]
    in_order = list if lab.store.capabilities.strict_order else sorted
    assert in_order(job.id for job in claimed) == in_order(job.id for job in jobs)
    assert lab.counts() == {("default", State.RUNNING): 2_000}
    lab.clock.advance(seconds=1)
    beats = [Beat(job.id, job.token, str(job.lease_id), begun=bool(n % 2)) for n, job in enumerate(claimed)]
    assert lab.store.heartbeat(beats, LEASE) == [Answer.OK] * 2_000
    moves = [lifecycle.complete(job, f"{n}", RETENTION) for n, job in enumerate(claimed)]
    moves = [move if n % 10 else move._replace(guard=Held(2, "stale")) for n, move in enumerate(moves)]
    answers = lab.store.commit(moves)
    assert answers == [Answer.OK if n % 10 else Answer.ALREADY_CLAIMED for n in range(2_000)]
    assert lab.counts() == {("default", State.RUNNING): 200, ("default", State.SUCCEEDED): 1_800}
    read = lab.store.read([job.id for job in claimed])
    assert [job and job.result for job in read] == [f"{n}" if n % 10 else None for n in range(2_000)]
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert len(lab.store.expired(5_000)) == 200  # noqa: PLR2004
    assert (lab.store.purge(1_500).jobs, lab.store.purge(1_500).jobs) == (1_500, 300)


def what_was_acknowledged_is_there_after_a_restart(lab: Lab) -> None:
    lab.need("durable")
    jobs = [lab.in_state(state, queue=f"q-{state}") for state in State]
    step = lab.running(queue="steps")
    lab.done(lifecycle.checkpoint(step, "fetch", "1"))
    lab.job(key="k", queue="keys")
    lab.store.pause("mail")
    assert lab.store.lead("upkeep", "ada", MINUTE)
    kept, counts = [lab.held(job.id) for job in (*jobs, step)], lab.counts()
    lab.store.close()
    again = lab.reopen()
    for before in kept:
        assert before.job is not None
        assert again.read([before.job.id]) == [before.job]
        assert tuple(again.attempts(before.job.id)) == before.attempts
        assert tuple(again.steps(before.job.id)) == before.steps
    assert {what: number for what, number in again.counts().items() if number} == counts
    assert again.paused() == {"mail"}
    assert not again.lead("upkeep", "bob", MINUTE)
    assert list(again.check()) == []


def what_workflows_keep_is_there_after_a_restart(lab: Lab) -> None:
    lab.need("durable")
    lab.store.grant("acme", 20, "g-1")
    job = lab.running(tenant="acme", credits=4, code_version=2, steps=(("fetch", "1"),), key="k", unique="active")
    lab.beat(job, progress="[0.5,null]")
    move = lifecycle.checkpoint(lab.read(job), "charge", "2", undoable=True, spend=3)
    lab.done(events.told(job, move, public=True))
    lab.done(lifecycle.signal(lab.read(job), "s-1", "go", '"ü"'))
    child = (lab.ids.take(1)[0], lab.new(tenant="acme", parent=job.id, credits=2))
    wait = lifecycle.suspend(lab.read(job), "~wait", None, awaits="children", heard=1, children=(child,))
    parent = lab.done(wait)
    lab.store.save_schedule(ScheduleRecord("daily", "{}", 5, 3, paused=True), None)
    lab.store.reach("hook", 1)
    kept, books = lab.held(job.id), lab.books()
    lab.store.close()
    again = replace(lab, store=lab.reopen())
    assert (again.held(job.id), again.books()) == (kept, books)
    assert again.store.read([child[0]]) == [lifecycle.create(child[0], child[1]._replace(reserved=2), lab.clock.now())]
    assert again.store.schedules() == [ScheduleRecord("daily", "{}", 5, 3, paused=True)]
    assert again.store.sinks() == {"hook": 1}
    assert again.store.open_children([job.id]) == {job.id}
    assert again.store.grant("acme", 20, "g-1") == books.accounts[0]
    assert again.accepted([lab.new(tenant="acme", key="k", unique="active")]) == [Stored(parent, duplicate=True)]
    woken = again.done(lifecycle.signal(parent, "s-2", "children", None))
    assert again.take(woken).flow == (parent.flow or Flow())._replace(signals=2)
    assert list(again.store.check()) == []


def another_object_on_the_same_data_sees_every_change(lab: Lab) -> None:
    lab.need("shared")
    job = lab.job()
    assert lab.other.read([job.id]) == [job]
    [claimed] = lab.other.claim(lab.want())
    assert lab.read(job) == claimed
    lab.done(lifecycle.complete(claimed, None, RETENTION))
    assert lab.other.counts() == lab.store.counts()


def a_closed_store_says_so(lab: Lab) -> None:
    store = lab.reopen()
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable):
        store.read([])
    with pytest.raises(StoreUnavailable):
        store.claim(lab.want())
    with pytest.raises(StoreUnavailable):
        store.insert([[(lab.ids.take(1)[0], lab.new())]])


def a_healthy_store_has_no_findings(lab: Lab) -> None:
    for state in State:
        lab.in_state(state, key=f"key of {state}")
    assert list(lab.store.check()) == []


def the_store_s_time_is_the_clock_s(lab: Lab) -> None:
    assert lab.store.now() == lab.clock.now()
    lab.clock.advance(days=1)
    assert lab.store.now() == lab.clock.now()


def a_url_names_the_store(lab: Lab) -> None:
    assert "://" in lab.store.url
    assert lab.other.url == lab.store.url
