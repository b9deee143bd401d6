"""Backoff: the four policies of the seeds, their bounds, and the text they are stored as."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import BadInput
from holdfast.domain.moments import SECOND
from holdfast.domain.retry import DEFAULT_RETRY, LONGEST, Retry, parse

ALMOST_ONE = 1 - 2**-53


def seconds(policy: Retry, attempts: int, draw: float = 0.0) -> list[float]:
    return [policy.delay(attempt, draw) / SECOND for attempt in range(1, attempts + 1)]


def test_the_contract_s_table_repeats_its_last_delay() -> None:
    policy = Retry.table(30, 120, 600, 1800, max_attempts=5)
    assert seconds(policy, 6) == [30, 120, 600, 1800, 1800, 1800]
    assert seconds(policy, 6, ALMOST_ONE) == seconds(policy, 6)
    assert policy.max_attempts == 5


def test_the_scheduled_queue_s_delay_doubles_from_its_base() -> None:
    policy = Retry.exponential(base=60, max_attempts=5)
    assert seconds(policy, 5) == [60, 120, 240, 480, 960]
    assert seconds(policy, 5, ALMOST_ONE) == seconds(policy, 5)


def test_the_lifecycle_s_three_retries_wait_a_second_each() -> None:
    policy = Retry.fixed(1, retries=3)
    assert seconds(policy, 4) == [1, 1, 1, 1]
    assert policy.max_attempts == 4


def test_the_leasing_design_s_jitter_is_really_added() -> None:
    policy = Retry.exponential(base=2, jitter=0.1)
    assert seconds(policy, 4) == [2, 4, 8, 16]
    assert seconds(policy, 4, 0.5) == [2.1, 4.2, 8.4, 16.8]
    assert [policy.bounds(attempt) for attempt in (1, 2)] == [(2 * SECOND, 2_200_000), (4 * SECOND, 4_400_000)]
    assert policy == DEFAULT_RETRY


def test_a_delay_stops_growing_at_its_maximum() -> None:
    policy = Retry.exponential(base=10, max_delay=timedelta(seconds=25), max_attempts=10_000)
    assert seconds(policy, 4) == [10, 20, 25, 25]
    assert policy.delay(10_000, 0.9) == 25 * SECOND
    assert Retry.exponential(base=10, max_attempts=10_000).delay(10_000, 0) == LONGEST


policies = st.one_of(
    st.builds(
        lambda delays, n: Retry.table(*delays, max_attempts=n),
        st.lists(st.integers(0, 9_999), min_size=1, max_size=5),
        st.integers(1, 99),
    ),
    st.builds(lambda delay, n: Retry.fixed(delay, retries=n), st.floats(0, 9_999), st.integers(0, 99)),
    st.builds(
        lambda base, n, jitter, most: Retry.exponential(base, max_attempts=n, jitter=jitter, max_delay=most),
        st.floats(0, 9_999),
        st.integers(1, 99),
        st.integers(0, 100).map(lambda share: share / 100),
        st.none() | st.integers(0, 9_999),
    ),
)


@given(policies, st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_every_delay_keeps_to_its_declared_bounds(policy: Retry, attempt: int, draw: float) -> None:
    low, high = policy.bounds(attempt)
    assert 0 <= low <= policy.delay(attempt, draw) <= high <= 2 * LONGEST
    assert policy.delay(attempt, 0.0) == low


@given(policies)
def test_a_policy_comes_back_from_its_text(policy: Retry) -> None:
    assert parse(policy.spec, policy.max_attempts) == policy


@pytest.mark.parametrize(
    "make",
    [
        Retry.table,
        lambda: Retry.table(-1),
        lambda: Retry.table(float("nan")),
        lambda: Retry.table("30"),  # type: ignore[arg-type]
        lambda: Retry.table(1, max_attempts=0),
        lambda: Retry.table(1, max_attempts=True),
        lambda: Retry.table(1, max_attempts=2.5),  # type: ignore[arg-type]
        lambda: Retry.exponential(base=-2),
        lambda: Retry.exponential(jitter=-0.1),
        lambda: Retry.exponential(jitter=1.1),
        lambda: Retry.exponential(jitter=float("nan")),
        lambda: Retry.exponential(max_delay=-1),
        lambda: Retry.exponential(max_attempts=10_001),
        lambda: Retry.fixed(float("inf")),
        lambda: Retry.fixed(1, retries=-1),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(BadInput):
        make()


def test_a_stored_policy_of_no_known_shape_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown shape 'fibonacci'"):
        parse("fibonacci:1:0:9", 3)


def test_the_widest_jitter_still_has_an_upper_bound() -> None:
    assert Retry.exponential(base=1, jitter=1).bounds(1) == (SECOND, 2 * SECOND)
