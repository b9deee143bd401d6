"""Storing jobs: whole groups, keys, and asking twice."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from holdfast.domain import lifecycle
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND
from holdfast.testing.lab import RETENTION, Lab, Stored, stored


def a_job_is_stored_as_the_lifecycle_creates_it(lab: Lab) -> None:
    new = NewJob(
        "mail.send", '{"to":["a","b"],"n":1.5}', "mail", "acme", "u-7", -3, "table:1,2:0:3", 7, 2, "webhook", "t",
        "k", HOUR, 5 * SECOND, None, MINUTE, 4, State.CREATED,
    )  # fmt: skip
    [id_] = lab.ids.take(1)
    [[answer]] = _accepted(lab, [(id_, new)])
    assert answer == Stored(lifecycle.create(id_, new, lab.clock.now()), duplicate=False)
    assert lab.store.read([id_]) == [answer.job]
    assert lab.store.attempts(id_) == []
    assert lab.store.steps(id_) == []


def a_job_for_a_fixed_time_is_due_then(lab: Lab) -> None:
    at = lab.clock.now() + 3 * DAY + 1
    assert lab.job(run_at=at, delay=5).available_at == at


def answers_come_in_the_order_asked(lab: Lab) -> None:
    first, second = lab.ids.take(4), lab.ids.take(3)
    groups = [[(id_, lab.new()) for id_ in first], [], [(id_, lab.new()) for id_ in second]]
    answers = lab.store.insert(groups)
    assert [[one.job.id for one in answer] for answer in answers if isinstance(answer, list)] == [first, [], second]


def inserting_nothing_is_allowed(lab: Lab) -> None:
    assert lab.store.insert([]) == []
    assert lab.counts() == {}


def a_conflict_refuses_its_whole_group_and_no_other(lab: Lab) -> None:
    owner = lab.job(key="taken", payload='{"v":1}')
    ids = lab.ids.take(5)
    clash = lab.new(key="taken", payload='{"v":2}')
    answers = lab.store.insert(
        [
            [(ids[0], lab.new())],
            [(ids[1], lab.new()), (ids[2], clash), (ids[3], lab.new(key="free"))],
            [(ids[4], lab.new())],
        ]
    )
    assert isinstance(answers[0], list)
    assert isinstance(answers[1], KeyConflict)
    assert isinstance(answers[2], list)
    assert [job is not None for job in lab.store.read(ids)] == [True, False, False, False, True]
    assert lab.read(owner) == owner
    assert not lab.accepted([lab.new(key="free", payload='"else"')])[0].duplicate, (
        "a refused group must leave its keys free"
    )


def a_conflict_names_the_job_that_owns_the_key(lab: Lab) -> None:
    owner = lab.job(key="taken")
    [answer] = lab.store.insert([[(lab.ids.take(1)[0], lab.new(key="taken", payload="2"))]])
    assert isinstance(answer, KeyConflict)
    assert owner.id in str(answer)
    assert "taken" in str(answer)


def the_same_key_and_payload_return_the_first_job(lab: Lab) -> None:
    first = lab.job(key="k")
    [again] = lab.accepted([lab.new(key="k")])
    assert again == Stored(first, duplicate=True)
    assert lab.counts() == {("default", State.QUEUED): 1}


def a_duplicate_shows_the_first_job_as_it_is_now(lab: Lab) -> None:
    running = lab.take(lab.job(key="k"))
    assert lab.accepted([lab.new(key="k")])[0] == Stored(running, duplicate=True)
    done = lab.done(lifecycle.complete(running, None, RETENTION))
    assert lab.accepted([lab.new(key="k")])[0] == Stored(done, duplicate=True)


def the_same_payload_in_another_key_order_is_the_same(lab: Lab) -> None:
    first = lab.job(key="k", payload='{"a":1,"b":{"x":[1,2],"y":null}}')
    [again] = lab.accepted([lab.new(key="k", payload='{"b": {"y": null, "x": [1, 2]}, "a": 1}')])
    assert again == Stored(first, duplicate=True)


def the_same_key_for_another_kind_is_a_conflict(lab: Lab) -> None:
    lab.job(key="k")
    assert isinstance(lab.store.insert([[(lab.ids.take(1)[0], lab.new(key="k", kind="other"))]])[0], KeyConflict)


def the_same_key_of_another_tenant_is_another_key(lab: Lab) -> None:
    jobs = [lab.job(key="k", tenant=tenant, payload=f'"{tenant}"') for tenant in ("", "acme", "k")]
    assert len({job.id for job in jobs}) == 3


def a_key_is_free_once_its_job_is_purged(lab: Lab) -> None:
    first = lab.in_state(State.SUCCEEDED, key="k")
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert lab.store.purge(10).jobs == 1
    [again] = lab.accepted([lab.new(key="k", payload='"else"')])
    assert not again.duplicate
    assert again.job.id != first.id


def a_key_is_free_once_its_window_ends_and_not_before(lab: Lab) -> None:
    first = lab.job(key="k", key_ttl=HOUR)
    lab.clock.advance(microseconds=HOUR - 1)
    assert lab.accepted([lab.new(key="k", key_ttl=HOUR)])[0] == Stored(first, duplicate=True)
    lab.clock.advance(microseconds=1)
    [second] = lab.accepted([lab.new(key="k", payload='"else"')])
    assert not second.duplicate
    assert lab.read(first) == first


def purging_a_key_s_former_job_leaves_the_key_to_its_owner(lab: Lab) -> None:
    lab.in_state(State.SUCCEEDED, key="k", key_ttl=HOUR)
    lab.clock.advance(microseconds=HOUR)
    owner = lab.job(key="k", delay=90 * DAY)
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert lab.store.purge(10).jobs == 1
    assert lab.accepted([lab.new(key="k")])[0] == Stored(owner, duplicate=True)


def a_key_used_twice_in_one_group_makes_one_job(lab: Lab) -> None:
    first, other, again = lab.accepted([lab.new(key="k"), lab.new(), lab.new(key="k")])
    assert again == Stored(first.job, duplicate=True)
    assert not first.duplicate
    assert lab.counts() == {("default", State.QUEUED): 2}
    assert other.job.id != first.job.id


def a_key_used_for_two_payloads_in_one_group_refuses_it(lab: Lab) -> None:
    ids = lab.ids.take(2)
    news = [lab.new(key="k", payload="1"), lab.new(key="k", payload="2")]
    [answer] = lab.store.insert([list(zip(ids, news, strict=True))])
    assert isinstance(answer, KeyConflict)
    assert lab.store.read(ids) == [None, None]


def a_key_used_in_two_groups_of_one_call_makes_one_job(lab: Lab) -> None:
    ids = lab.ids.take(3)
    answers = _accepted(lab, [(ids[0], lab.new(key="k"))], [(ids[1], lab.new()), (ids[2], lab.new(key="k"))])
    assert answers[1][1] == (answers[0][0].job, True)
    assert lab.store.read(ids[2:]) == [None]


def the_same_ids_asked_again_store_nothing_twice(lab: Lab) -> None:
    group = [(id_, lab.new(key=key)) for id_, key in zip(lab.ids.take(3), (None, "a", "b"), strict=True)]
    [first] = _accepted(lab, group)
    [again] = _accepted(lab, group)
    assert again == first
    assert lab.counts() == {("default", State.QUEUED): 3}


def a_group_of_which_a_part_is_known_stores_the_rest(lab: Lab) -> None:
    known, new, other = lab.ids.take(3)
    _accepted(lab, [(known, lab.new())])
    for group in ([(known, lab.new()), (new, lab.new())], [(other, lab.new()), (known, lab.new()), (other, lab.new())]):
        [answers] = _accepted(lab, group)
        assert [answer.job.id for answer in answers] == [id_ for id_, _ in group]
        assert not any(answer.duplicate for answer in answers)
    assert None not in lab.store.read([known, new, other])
    assert lab.counts() == {("default", State.QUEUED): 3}


def the_same_ids_asked_again_show_the_jobs_as_they_are_now(lab: Lab) -> None:
    [id_] = lab.ids.take(1)
    [[first]] = _accepted(lab, [(id_, lab.new())])
    running = lab.take(first.job)
    lab.clock.advance(seconds=5)
    assert _accepted(lab, [(id_, lab.new())]) == [[Stored(running, duplicate=False)]]
    assert lab.read(running) == running


def a_duplicate_asked_again_is_still_a_duplicate(lab: Lab) -> None:
    owner = lab.job(key="k")
    group = [(lab.ids.take(1)[0], lab.new(key="k"))]
    assert _accepted(lab, group) == _accepted(lab, group) == [[Stored(owner, duplicate=True)]]


def an_id_made_early_and_stored_late_is_an_ordinary_job(lab: Lab) -> None:
    [early] = lab.ids.take(1)
    lab.clock.advance(hours=1)
    first = lab.job()
    lab.clock.advance(hours=1)
    _accepted(lab, [(early, lab.new())])
    assert [job.id for job in lab.claim(5)] == [first.id, early], "age is the time of storing, not of the id"


def _accepted(lab: Lab, *groups: list[tuple[str, NewJob]]) -> list[list[Stored]]:
    return [stored(answer) for answer in lab.store.insert(groups)]
