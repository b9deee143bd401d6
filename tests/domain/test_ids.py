"""Job ids: version 7 UUIDs that never run backwards."""

import random
from collections.abc import Callable
from uuid import RFC_4122, UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import BadInput
from holdfast.domain.ids import Ids, job_id

NOW = 1_767_225_600_000


def ones(bits: int) -> int:
    return (1 << bits) - 1


def zeros(_: int) -> int:
    return 0


@pytest.mark.parametrize("bits", [random.Random(1).getrandbits, ones, zeros])
def test_ids_are_version_7_uuids_that_tell_the_time(bits: Callable[[int], int]) -> None:
    for text in Ids(lambda: NOW, bits).take(50):
        made = UUID(text)
        assert (made.version, made.variant, str(made)) == (7, RFC_4122, text)
        assert NOW <= made.int >> 80 <= NOW + 50


@pytest.mark.parametrize("bits", [random.Random(1).getrandbits, ones, zeros])
def test_ids_rise_within_and_across_calls(bits: Callable[[int], int]) -> None:
    ids = Ids(lambda: NOW, bits)
    made = [id_ for count in (1, 1_000, 1, 0, 7) for id_ in ids.take(count)]
    assert len(made) == 1_009
    assert made == sorted(set(made))


@given(st.lists(st.integers(NOW, NOW + 5), min_size=1, max_size=20), st.integers())
def test_ids_rise_though_the_clock_goes_back(times: list[int], seed: int) -> None:
    clock = iter(times)
    ids = Ids(lambda: next(clock), random.Random(seed).getrandbits)
    made = [id_ for _ in times for id_ in ids.take(3)]
    assert made == sorted(set(made))


def test_ids_of_two_sources_do_not_meet() -> None:
    left, right = (Ids(lambda: NOW, random.Random(seed).getrandbits).take(1_000) for seed in (1, 2))
    assert not set(left) & set(right)


def test_ids_made_later_sort_later() -> None:
    times = iter([NOW, NOW + 1])
    ids = Ids(lambda: next(times), ones)
    assert ids.take(1) < ids.take(1)


def test_an_id_is_read_from_a_uuid_or_its_text() -> None:
    one = uuid4()
    assert job_id(one) == job_id(str(one)) == job_id(str(one).upper()) == job_id(one.hex) == str(one)


@pytest.mark.parametrize("bad", ["", "7", "not an id", 7, None, b"x", "0" * 33])
def test_anything_else_is_not_a_job_id(bad: UUID | str) -> None:
    with pytest.raises(BadInput, match="is not a job id; job ids are UUIDs"):
        job_id(bad)
