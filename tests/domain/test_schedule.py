"""When schedules fire: cron lines where the clocks change, distances that never drift, and times that were missed."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain import codec, schedule
from holdfast.domain.errors import BadInput, StoreError
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND, Micros, instant, to_datetime
from holdfast.domain.schedule import Spec

JOB = NewJob("tidy", '{"a":1}')
NOW = instant(datetime(2026, 1, 1, tzinfo=UTC), "now")
CHANGES = {
    "Europe/Prague": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 10, 3, 15, 30, tzinfo=UTC), datetime(2026, 4, 4, 15, tzinfo=UTC)),
    "America/Havana": (datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 11, 1, 5, tzinfo=UTC)),
}
"""When clocks go forward and back; on Lord Howe by half an hour, in Havana at midnight."""


def cron(line: str, tz: str = "UTC", catch_up: str = "skip") -> Spec:
    return schedule.checked(JOB, cron=line, every=None, tz=tz, catch_up=catch_up, now=NOW)


def every(seconds: float, catch_up: str = "skip", anchor: Micros = NOW) -> Spec:
    asked = schedule.checked(JOB, cron=None, every=seconds, tz="UTC", catch_up=catch_up, now=NOW)
    return schedule.anchored(asked, anchor)


def at(*parts: int) -> Micros:
    return instant(datetime(*parts, tzinfo=UTC), "at")  # type: ignore[misc,arg-type]


def between(spec: Spec, start: datetime, end: datetime) -> Iterator[datetime]:
    """List the times from `start` up to, but not at, `end`, by the wall of the spec's zone."""
    found = schedule.next_after(spec, instant(start, "start") - 1)
    while found < instant(end, "end"):
        yield to_datetime(found).astimezone(ZoneInfo(spec.tz))
        found = schedule.next_after(spec, found)


def shown(times: Iterator[datetime]) -> list[str]:
    return [f"{time:%H:%M%z}" for time in times]


def day(spec: Spec, *parts: int) -> list[str]:
    """List what the wall shows at the times of one day."""
    start = datetime(*parts, tzinfo=ZoneInfo(spec.tz))  # type: ignore[misc,arg-type]
    return shown(between(spec, start, start + timedelta(days=1)))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "either cron= or every=, and neither was given"),
    ({"cron": "* * * * *", "every": 5}, "either cron= or every=, and both were given"),
    ({"cron": "61 * * * *"}, "is not a cron line (bad minute)"),
    ({"cron": "0 0 * * MOO"}, "is not a cron line (bad day-of-week)"),
    ({"cron": "0 0 99 2 *"}, "is not a cron line (bad day-of-month)"),
    ({"cron": "@daily"}, "five fields"),
    ({"cron": "0 0 3 * * *"}, "has 6"),
    ({"cron": ""}, "has 0"),
    ({"cron": 7}, "7 is not"),
    ({"cron": "0 3 * *\n*"}, "is not"),
    ({"cron": "٣ 3 * * *"}, "is not"),
    ({"cron": "0 " + "9" * 5000 + " * * *"}, "is not"),
    ({"cron": "0 0 30 2 *"}, "'0 0 30 2 *' never fires"),
    ({"cron": "0 0 31 4,6,9,11 *"}, "never fires"),
    ({"cron": "*/5 * * 2 MON#5"}, "never fires"),
    ({"cron": "* * */20 * 1L"}, "never fires"),
    ({"every": 0.999}, "one second or more"),
    ({"every": 0}, "one second or more"),
    ({"every": timedelta(milliseconds=-1)}, "must not be negative"),
    ({"every": "5"}, "a number of seconds"),
    ({"every": float("nan")}, "a number of seconds"),
    ({"every": 5, "tz": "Europe/Prag"}, "'Europe/Prag' is not a time zone"),
    ({"every": 5, "tz": "Europe"}, "is not a time zone"),
    ({"every": 5, "tz": "../../etc/passwd"}, "is not a time zone"),
    ({"every": 5, "tz": "/etc/passwd"}, "is not a time zone"),
    ({"every": 5, "tz": ""}, "is not a time zone"),
    ({"every": 5, "tz": "x" * 5000}, "is not a time zone"),
    ({"every": 5, "tz": "\udc00"}, "is not a time zone"),
    ({"every": 5, "tz": None}, "None is not a time zone"),
    ({"every": 5, "catch_up": "some"}, "one of skip, once, all; 'some' is not"),
    ({"every": 5, "catch_up": None}, "None is not"),
    ({"every": 5, "job": JOB._replace(key="k")}, "without key="),
    ({"every": 5, "job": JOB._replace(unique="active")}, "without key="),
    ({"every": 5, "job": JOB._replace(delay=1)}, "without run_after= or run_at="),
    ({"every": 5, "job": JOB._replace(run_at=1)}, "without run_after= or run_at="),
    ({"every": 5, "job": JOB._replace(payload=codec.ARTIFACT + "{}}")}, "at most 262,144 bytes"),
    ({"every": 5, "job": JOB._replace(payload='"' + "é" * 131_072 + '"')}, "at most 262,144 bytes"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_scheduled_is_refused_in_a_sentence(asked: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {"job": JOB, "cron": None, "every": None, "tz": "UTC", "catch_up": "skip", "now": NOW}
    with pytest.raises(BadInput) as refused:
        schedule.checked(**(usual | asked))
    assert said in str(refused.value)
    assert str(refused.value).endswith((".", "?"))
    assert len(str(refused.value)) < 250


def test_the_29th_of_february_comes_even_across_a_year_without_it() -> None:
    leap = cron("0 0 29 2 *")
    assert schedule.next_after(leap, at(2096, 2, 29)) == at(2104, 2, 29)
    assert schedule.checked(JOB, cron=leap.cron, every=None, tz="UTC", catch_up="skip", now=at(2096, 3, 1))


def test_a_line_that_has_no_more_times_waits_for_ever() -> None:
    assert schedule.next_after(Spec(JOB, "* * */20 * 1L"), NOW) == schedule.NEVER
    assert schedule.next_after(Spec(JOB, "0 0 29 2 *"), at(9998, 1, 1)) == schedule.NEVER
    assert schedule.due(Spec(JOB, "0 0 29 2 *"), schedule.NEVER, at(9998, 1, 1)) == ([], schedule.NEVER)


def test_a_line_is_read_in_its_zone() -> None:
    nightly = cron("0 3 * * *", "Europe/Prague")
    assert schedule.next_after(nightly, at(2026, 1, 1)) == at(2026, 1, 1, 2)
    assert schedule.next_after(nightly, at(2026, 1, 1, 2)) == at(2026, 1, 2, 2)
    assert schedule.next_after(nightly, at(2026, 7, 1)) == at(2026, 7, 1, 1)


@pytest.mark.parametrize("tz", ["Europe/Prague", "America/New_York"])
@pytest.mark.parametrize("line", ["30 2 * * *", "0 2 * * *", "30 1 * * *", "0 3 * * *", "0 0 * * *", "59 23 * * *"])
def test_a_daily_line_fires_once_on_every_day_of_the_year(line: str, tz: str) -> None:
    zone = ZoneInfo(tz)
    times = list(between(cron(line, tz), datetime(2026, 1, 1, tzinfo=zone), datetime(2027, 1, 1, tzinfo=zone)))
    assert [time.date() for time in times] == [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]


def test_a_time_that_the_clocks_leave_out_fires_when_they_have_moved_on() -> None:
    assert day(cron("30 2 * * *", "Europe/Prague"), 2026, 3, 28) == ["02:30+0100"]
    assert day(cron("30 2 * * *", "Europe/Prague"), 2026, 3, 29) == ["03:00+0200"]
    assert day(cron("30 2 * * *", "Europe/Prague"), 2026, 3, 30) == ["02:30+0200"]
    assert day(cron("30 2 * * *", "America/New_York"), 2026, 3, 8) == ["03:00-0400"]
    assert day(cron("15,45 2 * * *", "Europe/Prague"), 2026, 3, 29) == ["03:00+0200"]
    assert day(cron("0 2,3,4 * * *", "Europe/Prague"), 2026, 3, 29) == ["03:00+0200", "04:00+0200"]


def test_a_time_that_the_clocks_show_twice_fires_the_first_time() -> None:
    prague, new_york = cron("30 2 * * *", "Europe/Prague"), cron("30 1 * * *", "America/New_York")
    assert day(prague, 2026, 10, 25) == ["02:30+0200"]
    assert day(new_york, 2026, 11, 1) == ["01:30-0400"]
    in_the_second_hour = instant(CHANGES["Europe/Prague"][1] + timedelta(minutes=10), "at")
    assert schedule.next_after(prague, in_the_second_hour) == at(2026, 10, 26, 1, 30)


def test_a_line_with_a_star_follows_the_clock_through_both_changes() -> None:
    hourly = cron("0 * * * *", "Europe/Prague")
    assert (len(day(hourly, 2026, 3, 29)), len(day(hourly, 2026, 10, 25))) == (23, 25)
    for tz, (forward, back) in CHANGES.items():
        for change in (forward, back):
            times = list(between(cron("*/30 * * * *", tz), change - timedelta(days=1), change + timedelta(days=1)))
            assert {b - a for a, b in pairwise(time.astimezone(UTC) for time in times)} == {timedelta(minutes=30)}
    quarterly = cron("*/15 2 * * *", "Europe/Prague")
    assert (len(day(quarterly, 2026, 3, 29)), len(day(quarterly, 2026, 10, 25))) == (0, 8)


WALL: list[tuple[str, Callable[[datetime], bool]]] = [
    ("*/5 1,2 * * *", lambda wall: wall.minute % 5 == 0 and wall.hour in (1, 2)),
    ("* 0 * * *", lambda wall: wall.hour == 0),
    ("20-40 * * * *", lambda wall: 20 <= wall.minute <= 40),
    ("*/10 5 * * SUN", lambda wall: wall.minute % 10 == 0 and wall.hour == 5 and wall.weekday() == 6),
    ("7 */3 * * *", lambda wall: wall.minute == 7 and wall.hour % 3 == 0),
]


@pytest.mark.parametrize("tz", CHANGES)
@pytest.mark.parametrize(("line", "fits"), WALL, ids=lambda value: value if isinstance(value, str) else "")
def test_a_line_with_a_star_fires_whenever_the_wall_shows_it(
    tz: str, line: str, fits: Callable[[datetime], bool]
) -> None:
    for change in CHANGES[tz]:
        start = change - timedelta(hours=30)
        walls = ((start + timedelta(minutes=n)).astimezone(ZoneInfo(tz)) for n in range(60 * 60))
        expected = [wall.astimezone(UTC) for wall in walls if fits(wall)]
        found = between(cron(line, tz), start, start + timedelta(hours=60))
        assert [time.astimezone(UTC) for time in found] == expected
        assert expected


FIELD = st.sampled_from(["*", "*/7", "*/15", "0", "1", "2", "3", "17", "0,2", "1-3", "2/6"])
ZONES = st.sampled_from([*CHANGES, "UTC", "Asia/Kolkata", "America/Santiago", "Africa/Cairo", "Africa/Casablanca"])


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(FIELD, FIELD, st.sampled_from(["*", "*/2", "8", "25-29"]), st.just("*"), st.sampled_from(["*", "SUN"])),
    ZONES,
    st.sampled_from([change for pair in CHANGES.values() for change in pair]),
    st.integers(-30 * HOUR, 30 * HOUR),
    st.floats(0, 1, exclude_max=True),
)
def test_the_next_time_is_the_same_from_any_instant_before_it(
    fields: tuple[str, ...], tz: str, change: datetime, away: Micros, share: float
) -> None:
    spec, start = Spec(JOB, " ".join(fields), None, tz), instant(change, "change") + away
    found = schedule.next_after(spec, start)
    assert found > start
    later = start + int((found - start) * share)
    assert schedule.next_after(spec, min(later, found - 1)) == found


@given(st.integers(SECOND, 400 * DAY), st.integers(0, 10**15), st.lists(st.integers(0, 10**15), min_size=1))
def test_a_distance_never_drifts_from_its_anchor(span: Micros, anchor: Micros, asked: list[Micros]) -> None:
    spec = Spec(JOB, None, span, anchor=anchor)
    for instant_ in asked:
        found = schedule.next_after(spec, instant_)
        assert (found - anchor) % span == 0
        assert 0 < found - instant_ <= span


def test_a_distance_is_first_counted_from_now() -> None:
    spec = every(90, anchor=NOW + 123_456)
    assert (spec.anchor, schedule.next_after(spec, NOW + 123_456)) == (NOW, NOW + 90 * SECOND)


def test_nothing_is_due_before_its_time_and_a_time_is_due_when_it_has_come() -> None:
    spec = every(600)
    assert schedule.due(spec, NOW + 600 * SECOND, NOW + 600 * SECOND - 1) == ([], NOW + 600 * SECOND)
    assert schedule.due(spec, NOW + 600 * SECOND, NOW + 600 * SECOND) == ([NOW + 600 * SECOND], NOW + 1200 * SECOND)


def offsets(times: list[Micros]) -> list[int]:
    return [(time - NOW) // MINUTE for time in times]


@pytest.mark.parametrize(
    ("catch_up", "late", "fired"),
    [
        ("skip", 60 * SECOND, [0]),
        ("skip", 60 * SECOND + 1, []),
        ("skip", 30 * MINUTE, [30]),
        ("skip", 35 * MINUTE, []),
        ("once", 60 * SECOND, [0]),
        ("once", 60 * SECOND + 1, [0]),
        ("once", 30 * MINUTE, [20, 30]),
        ("once", 35 * MINUTE, [30]),
        ("all", 60 * SECOND + 1, [0]),
        ("all", 35 * MINUTE, [0, 10, 20, 30]),
    ],
)
@pytest.mark.parametrize("line", [None, "*/10 * * * *"])
def test_what_was_missed_is_dropped_folded_or_made_up_for(
    catch_up: str, late: Micros, fired: list[int], line: str | None
) -> None:
    spec = every(600, catch_up) if line is None else cron(line, catch_up=catch_up)
    times, next_at = schedule.due(spec, NOW, NOW + late)
    assert offsets(times) == fired
    assert next_at == schedule.next_after(spec, NOW + late)


def test_at_most_a_thousand_times_are_made_up_for_in_one_go() -> None:
    spec = every(60, "all")
    first, next_at = schedule.due(spec, NOW, NOW + 2500 * MINUTE)
    assert (offsets(first), next_at) == (list(range(1000)), NOW + 1000 * MINUTE)
    second, next_at = schedule.due(spec, next_at, NOW + 2500 * MINUTE)
    third, next_at = schedule.due(spec, next_at, NOW + 2500 * MINUTE)
    assert offsets(second + third) == list(range(1000, 2501))[:1501]
    assert next_at == NOW + 2501 * MINUTE


@pytest.mark.parametrize("line", ["* * * * *", "*/7 3 1 1 *", "0 0 29 2 *", "30 2 * * SUN", "* * 1 JAN *"])
def test_years_of_missed_times_fold_into_the_latest_without_going_through_them(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, years_later = cron(line, catch_up="once"), at(2046, 6, 15, 12, 30, 30)
    asked: list[Micros] = []
    next_after = schedule.next_after

    def counted(spec: Spec, after: Micros) -> Micros:
        asked.append(after)
        return next_after(spec, after)

    monkeypatch.setattr(schedule, "next_after", counted)
    times, next_at = schedule.due(spec, schedule.next_after(spec, NOW), years_later)
    latest = times[-1] if line == "* * * * *" else times[0]
    assert latest <= years_later < next_at == next_after(spec, latest)
    assert len(asked) < 15_000


@given(st.integers(0, 50 * HOUR), st.sampled_from(["*/20 * * * *", "15 */5 * * *", "*/2 7 * * *", "0 3 * * *"]))
@settings(max_examples=60, deadline=None)
def test_the_latest_missed_time_is_the_last_of_all_of_them(late: Micros, line: str) -> None:
    first = schedule.next_after(cron(line), NOW)
    every_one, _ = schedule.due(cron(line, catch_up="all"), first, first + late)
    folded, next_at = schedule.due(cron(line, catch_up="once"), first, first + late)
    missed = [time for time in every_one if time < first + late - MINUTE]
    assert folded == missed[-1:] + every_one[len(missed) :]
    assert next_at == schedule.next_after(cron(line), first + late)


def test_a_schedule_that_was_counted_by_a_clock_that_ran_ahead_is_counted_again() -> None:
    spec = cron("0 * * * *")
    ahead = at(2038, 1, 1, 1)
    assert schedule.recounted(spec, ahead, at(2038, 1, 1), NOW + 1) == NOW + HOUR
    assert schedule.recounted(spec, ahead, None, NOW + 1) == NOW + HOUR
    assert schedule.recounted(spec, NOW + HOUR, NOW, NOW + 1) == NOW + HOUR
    assert schedule.recounted(spec, NOW, None, NOW + 5 * HOUR) == NOW, "what is due is left to the policy"


def test_a_clock_that_is_set_back_a_little_does_not_bring_a_fired_time_back() -> None:
    spec = cron("0 * * * *")
    fired = NOW + HOUR
    assert schedule.recounted(spec, fired + HOUR, fired, fired - 2 * SECOND) == fired + HOUR


FULL = NewJob(
    "tidy", '{"a":1}', "mail", "acme", "ada", 7, "fixed:1", 9, 2, "webhook", "trace", None, None, 0, None, 5, 2,
    State.QUEUED, None, 3, 4, 0, None, (("one", "1"), ("two", None)),
)  # fmt: skip


@pytest.mark.parametrize(
    "spec", [Spec(JOB, "0 3 * * *", None, "Europe/Prague", "once"), Spec(FULL, None, 90 * SECOND, anchor=NOW)]
)
def test_a_spec_is_read_as_it_was_written(spec: Spec) -> None:
    read = schedule.decode(schedule.encode(spec))
    assert read == spec
    assert type(read.job.state) is State
    assert isinstance(read.job.steps, tuple)


@pytest.mark.parametrize(
    "stored", ["", "{}", "[]", "7", '{"job":{"kind":"k","payload":"","later":1}}', '{"job":{},"x":1}']
)
def test_what_another_version_wrote_is_refused_and_not_guessed_at(stored: str) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        schedule.decode(stored)


def test_the_job_of_a_time_is_known_by_its_schedule_and_time() -> None:
    job = schedule.job_at("nightly", Spec(FULL, "0 3 * * *"), at(2026, 3, 29, 1))
    assert (job.key, job.trigger, job.run_at) == (
        "schedule:nightly:2026-03-29T01:00:00+00:00",
        "schedule",
        at(2026, 3, 29, 1),
    )
    assert job._replace(key=None, trigger=FULL.trigger, run_at=None) == FULL


def test_a_new_spec_with_the_same_times_keeps_the_anchor_and_one_with_others_does_not() -> None:
    old = every(600)
    other_job = every(600, "all", anchor=0)._replace(job=JOB._replace(payload="{}"))
    assert schedule.succeed(other_job, old, NOW + 5 * SECOND) == (other_job._replace(anchor=NOW), True)
    assert schedule.succeed(every(300, anchor=0), old, NOW + SECOND) == (every(300, anchor=NOW + SECOND), False)
    assert schedule.succeed(cron("0 3 * * *"), old, NOW) == (cron("0 3 * * *"), False)
    assert schedule.succeed(cron("0 3 * * *", "Europe/Prague"), cron("0 3 * * *"), NOW)[1] is False
    assert schedule.succeed(every(600, anchor=0), None, NOW) == (old, False)
