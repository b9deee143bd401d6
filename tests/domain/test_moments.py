"""Time in whole microseconds."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import BadInput
from holdfast.domain.moments import DAY, HORIZON, HOUR, MINUTE, SECOND, duration, instant, to_datetime, to_seconds


@pytest.mark.parametrize(
    ("given_value", "micros"),
    [
        (0, 0),
        (1, SECOND),
        (0.5, SECOND // 2),
        (1e-6, 1),
        (1e-7, 0),
        (90, MINUTE + 30 * SECOND),
        (timedelta(hours=1), HOUR),
        (timedelta(days=1, microseconds=3), DAY + 3),
        (HORIZON / SECOND, HORIZON),
    ],
)
def test_a_duration_is_read_to_the_microsecond(given_value: float | timedelta, micros: int) -> None:
    assert duration(given_value, "a delay") == micros


@pytest.mark.parametrize(
    "bad", [-1, -0.1, timedelta(seconds=-1), HORIZON / SECOND + 1, 1e300, 10**30, 10**400, -(10**400), timedelta.max]
)
def test_a_duration_outside_a_hundred_years_is_refused_by_name(bad: float | timedelta) -> None:
    with pytest.raises(BadInput, match=r"^the lease must"):
        duration(bad, "the lease")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), True, "5", None, 1j, [1]])
def test_what_is_not_a_number_of_seconds_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(BadInput, match="the lease must be a number of seconds or a timedelta"):
        duration(bad, "the lease")


def test_an_instant_needs_a_time_zone() -> None:
    with pytest.raises(BadInput, match="run_at must be a datetime with a time zone"):
        instant(datetime(2026, 1, 1), "run_at")  # noqa: DTZ001 - the point of the test
    with pytest.raises(BadInput):
        instant("2026-01-01", "run_at")  # type: ignore[arg-type]


def test_an_instant_is_the_same_in_every_zone() -> None:
    there = datetime(2026, 3, 29, 4, 0, tzinfo=timezone(timedelta(hours=2)))
    assert instant(there, "run_at") == instant(datetime(2026, 3, 29, 2, 0, tzinfo=UTC), "run_at")


@given(st.datetimes(timezones=st.just(UTC)))
def test_instants_come_back_unchanged(at: datetime) -> None:
    assert to_datetime(instant(at, "at")) == at


@given(st.integers(0, HORIZON))
def test_durations_come_back_unchanged(span: int) -> None:
    assert duration(timedelta(microseconds=span), "a span") == span


def test_seconds_are_for_people() -> None:
    assert to_seconds(1_500_000) == 1.5
