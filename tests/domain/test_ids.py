"""Job ids: version 7 UUIDs that never run backwards."""

import random
from collections.abc import Callable
from uuid import RFC_4122, UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain import ids as module
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


@pytest.mark.parametrize("first", [0, 1 << 60, (1 << 74) - (1 << 44)])
def test_many_ids_are_those_that_would_be_made_one_by_one(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    def source() -> Ids:
        bits = random.Random(1).getrandbits
        return Ids(lambda: NOW, lambda number: first if number == 73 else bits(number))

    together, apart = source(), source()
    made = [together.take(count) for count in (1, 100_000, 3, 20_000)]
    monkeypatch.setattr(module, "_MANY", 1_000_000)
    assert made == [apart.take(count) for count in (1, 100_000, 3, 20_000)]


def test_ids_of_two_sources_do_not_meet() -> None:
    left, right = (Ids(lambda: NOW, random.Random(seed).getrandbits).take(1_000) for seed in (1, 2))
    assert not set(left) & set(right)


def test_ids_made_later_sort_later() -> None:
    times = iter([NOW, NOW + 1])
    ids = Ids(lambda: next(times), ones)
    assert ids.take(1) < ids.take(1)


def test_ids_that_are_asked_for_one_by_one_rise_and_tell_the_time() -> None:
    ids = Ids(lambda: NOW, random.Random(1).getrandbits)
    moments = [NOW * 1000 + 300 * n for n in range(200)]
    made = [ids.one(now) for now in moments]
    assert made == sorted(set(made))
    assert all(0 <= now // 1000 - (UUID(id_).int >> 80) <= 17 for id_, now in zip(made, moments, strict=True))


def test_ids_that_were_made_ahead_do_not_come_behind_later_ones() -> None:
    ids = Ids(lambda: NOW, random.Random(1).getrandbits)
    made = [ids.one(NOW * 1000), ids.one(NOW * 1000), *ids.take(3), ids.one(NOW * 1000), *ids.take(1)]
    assert made == sorted(set(made))


def test_an_id_is_read_from_a_uuid_or_its_text() -> None:
    one = uuid4()
    assert job_id(one) == job_id(str(one)) == job_id(str(one).upper()) == job_id(one.hex) == str(one)


@pytest.mark.parametrize("bad", ["", "7", "not an id", 7, None, b"x", "0" * 33])
def test_anything_else_is_not_a_job_id(bad: UUID | str) -> None:
    with pytest.raises(BadInput, match="is not a job id; job ids are UUIDs"):
        job_id(bad)
