"""Keys that are taken behind their jobs: whatever happens between the two writes, a key has one job."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import KeyConflict, StoreUnavailable
from holdfast.domain.job import JobRecord, NewJob, State
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.port.store import Inserted, Query
from holdfast.stores.dynamodb.proofs import UNPROVED
from holdfast.stores.dynamodb.queue import Queues
from holdfast.testing.conformance import Lab
from holdfast.testing.lab import RETENTION
from tests.aws.outside import Outside

CALLS = 6
"""More than a job with a key takes: its row, its key, its message and that this was sent."""
MODES: list[dict[str, Any]] = [{}, {"unique": "active"}, {"unique": "waiting"}, {"key_ttl": HOUR}, {"delay": HOUR}]


def named(mode: dict[str, Any]) -> str:
    return "-".join(mode) or "plain"


class Died(Exception):
    """The process has died here."""


def interrupt(bench: Lab, patch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> list[str]:
    """Do something before the call of this number that the store makes to a table; gives what it calls. Numbers of jobs
    are written when it suits.
    """
    calls: Any = bench.store._wire._calls  # type: ignore[attr-defined]
    side = bench.store.address.side  # type: ignore[attr-defined]
    asked: list[str] = []
    plain = calls.call

    def call(operation: str, **arguments: Any) -> Any:
        if operation == "update_item" and arguments["TableName"] == side:
            return plain(operation, **arguments)
        asked.append(operation)
        if len(asked) == at + 1:
            act()
        return plain(operation, **arguments)

    patch.setattr(calls, "call", call)
    return asked


def die() -> None:
    raise Died


def stopped(bench: Lab, patch: pytest.MonkeyPatch, at: int, **fields: Any) -> None:
    """Store a job in a process that dies before the call of this number."""
    with patch.context() as brief:
        interrupt(bench, brief, at, die)
        with pytest.raises(Died):
            bench.job(**fields)


def ask(bench: Lab, new: NewJob, *, other: bool = False) -> Inserted | KeyConflict:
    store = bench.other if other else bench.store
    [answer] = store.insert([[(bench.ids.take(1)[0], new)]])
    if isinstance(answer, list):
        return answer[0]
    assert isinstance(answer, KeyConflict)
    return answer


def owners(bench: Lab) -> list[JobRecord]:
    return bench.store.find(Query(key="k"))


def test_a_job_with_a_key_takes_two_plain_writes(bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = interrupt(bench, monkeypatch, CALLS, lambda: None)
    job = bench.job(key="k", tenant="acme")
    assert asked == ["put_item", "put_item", "update_item"]
    assert (outside.status(job.id), UNPROVED in outside.rows()[job.id]) == ("queued", False)


def test_a_job_that_never_took_its_key_is_not_there(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(bench, monkeypatch, 1, key="k")
    [id_] = outside.rows()
    assert bench.store.read([id_]) == [None]
    assert owners(bench) == []
    assert bench.claim(id=id_) == bench.claim(tenant="") == []
    assert list(bench.store.check()) == []
    bench.clock.advance(microseconds=MINUTE - SECOND)
    bench.store.sweep(100)
    assert (list(outside.rows()), outside.number()) == ([id_], 0), "whoever stored it may still be about to"
    bench.clock.advance(seconds=1)
    bench.store.sweep(100)
    assert (outside.rows(), outside.number()) == ({}, 0)


def test_a_key_whose_taker_died_before_is_free(bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(bench, monkeypatch, 1, key="k")
    job = bench.job(key="k", payload="2")
    assert owners(bench) == [job]
    bench.clock.advance(microseconds=MINUTE)
    bench.store.sweep(100)
    assert list(outside.rows()) == [job.id]


def test_a_job_whose_storer_died_behind_its_key_is_called_for(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as brief:
        brief.setattr(Queues, "send", lambda *_: die())
        with pytest.raises(Died):
            bench.job(key="k")
    [(id_, row)] = outside.rows().items()
    assert (row["status"], UNPROVED in row) == ("pending", True)
    again = ask(bench, bench.new(key="k"), other=True)
    assert isinstance(again, Inserted)
    assert (again.job.id, again.duplicate) == (id_, True)
    assert UNPROVED not in outside.rows()[id_], "whoever relies on it has proved it"
    bench.clock.advance(microseconds=MINUTE)
    bench.store.sweep(100)
    assert (outside.status(id_), outside.number()) == ("queued", 1)


def test_upkeep_calls_for_a_job_that_has_its_key_although_it_is_marked(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as brief:
        brief.setattr(Queues, "send", lambda *_: die())
        with pytest.raises(Died):
            bench.job(key="k")
    bench.clock.advance(microseconds=MINUTE)
    bench.store.sweep(100)
    [(id_, row)] = outside.rows().items()
    assert (row["status"], UNPROVED in row, outside.number()) == ("queued", False, 1)
    assert [job.id for job in bench.claim()] == [id_]


def test_a_claim_by_a_message_that_is_quicker_than_its_sender_takes_the_job(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[JobRecord] = []
    with monkeypatch.context() as brief:
        interrupt(bench, brief, 2, lambda: claimed.extend(bench.other.claim(bench.want())))
        job = bench.job(key="k")
    assert [one.id for one in claimed] == [job.id]
    assert UNPROVED not in outside.rows()[job.id]
    assert bench.read(job).state is State.RUNNING


@pytest.mark.parametrize("at", range(CALLS))
@pytest.mark.parametrize(
    "modes", list(product(MODES, MODES)), ids=lambda pair: " ".join("-".join(m) or "plain" for m in pair)
)
def test_of_two_who_ask_for_a_key_one_has_it_whoever_comes_between(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch, modes: tuple[dict[str, Any], dict[str, Any]], at: int
) -> None:
    ours, theirs = modes
    between: list[Inserted | KeyConflict] = []
    with monkeypatch.context() as brief:
        interrupt(bench, brief, at, lambda: between.append(ask(bench, bench.new(key="k", **theirs), other=True)))
        mine = ask(bench, bench.new(key="k", **ours))
    other = between[0] if between else ask(bench, bench.new(key="k", **theirs), other=True)
    assert isinstance(mine, Inserted)
    assert isinstance(other, Inserted)
    assert (mine.duplicate, other.duplicate) in ((True, False), (False, True))
    assert mine.job.id == other.job.id
    assert [job.id for job in owners(bench)] == [mine.job.id] == list(outside.rows())


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("theirs", MODES, ids=named)
def test_a_key_has_one_job_wherever_the_first_who_asked_has_died(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch, theirs: dict[str, Any], at: int
) -> None:
    stopped(bench, monkeypatch, at, key="k")
    other = ask(bench, bench.new(key="k", **theirs), other=True)
    assert isinstance(other, Inserted)
    bench.clock.advance(microseconds=MINUTE)
    for _ in range(2):
        bench.store.sweep(100)
    assert [job.id for job in owners(bench)] == [other.job.id] == list(outside.rows())


def test_another_request_under_the_key_that_comes_between_is_a_conflict(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    between: list[Inserted | KeyConflict] = []
    with monkeypatch.context() as brief:
        interrupt(bench, brief, 1, lambda: between.append(ask(bench, bench.new(key="k", payload="2"), other=True)))
        assert isinstance(ask(bench, bench.new(key="k")), KeyConflict)
    [winner] = between
    assert isinstance(winner, Inserted)
    assert list(outside.rows()) == [winner.job.id]


def test_whoever_is_halted_between_the_two_writes_does_not_lose_its_job(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep has removed the row by the time that the key is taken."""

    def long_pause() -> None:
        bench.clock.advance(microseconds=MINUTE)
        bench.other.sweep(100)
        assert outside.rows() == {}

    with monkeypatch.context() as brief:
        interrupt(bench, brief, 1, long_pause)
        job = bench.job(key="k")
    assert owners(bench) == [job]
    assert list(bench.store.check()) == []


def test_whoever_is_halted_behind_the_key_does_not_lose_its_job(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep looks at the row when the key has been taken."""

    def long_pause() -> None:
        bench.clock.advance(microseconds=MINUTE)
        bench.other.sweep(100)

    with monkeypatch.context() as brief:
        interrupt(bench, brief, 2, long_pause)
        job = bench.job(key="k")
    assert owners(bench) == [job]
    assert list(outside.rows()) == [job.id]


def test_what_could_not_take_its_key_can_be_asked_for_again(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise StoreUnavailable("DynamoDB refuses more work at present.")

    group = [(bench.ids.take(1)[0], bench.new(key="k"))]
    with monkeypatch.context() as brief:
        interrupt(bench, brief, 1, refuse)
        with pytest.raises(StoreUnavailable):
            bench.store.insert([group])
    assert owners(bench) == []
    bench.store.insert([group])
    bench.store.insert([group])
    assert [job.id for job in owners(bench)] == [group[0][0]] == list(outside.rows())
    assert outside.number() == 1


def test_a_finished_job_keeps_a_plain_key_until_it_is_purged(bench: Lab) -> None:
    job = bench.in_state(State.SUCCEEDED, key="k")
    again = ask(bench, bench.new(key="k"))
    assert isinstance(again, Inserted)
    assert (again.job, again.duplicate) == (job, True)
    bench.clock.advance(microseconds=RETENTION.succeeded)
    assert bench.store.purge(100).jobs == 1
    fresh = ask(bench, bench.new(key="k", payload="2"))
    assert isinstance(fresh, Inserted)
    assert not fresh.duplicate
    assert list(bench.store.check()) == []


def test_a_key_is_handed_on_from_mode_to_mode(bench: Lab) -> None:
    first = bench.in_state(State.SUCCEEDED, key="k")
    second = bench.job(key="k", unique="active")
    again = ask(bench, bench.new(key="k"))
    assert isinstance(again, Inserted)
    assert (again.job, again.duplicate) == (second, True)
    bench.done(lifecycle.cancel(second, RETENTION))
    third = bench.job(key="k", unique="waiting")
    assert {job.id for job in owners(bench)} == {first.id, second.id, third.id}
    plain = ask(bench, bench.new(key="k"))
    assert isinstance(plain, Inserted)
    assert (plain.job, plain.duplicate) == (third, True)


def test_a_taken_key_that_is_asked_for_again_and_again_is_looked_for_first(
    bench: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.job(key="k")
    bench.accepted([bench.new(key="k")])
    asked = interrupt(bench, monkeypatch, CALLS, lambda: None)
    bench.accepted([bench.new(key="k")])
    assert not {"put_item", "delete_item", "transact_write_items"} & set(asked)
