"""Lanes that are read before they are asked for: whatever was read, an answer is the right one, or there is none."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain import limits
from holdfast.domain.limits import Plan
from holdfast.domain.ring import VISITS, Offer
from holdfast.domain.way import Cursor
from holdfast.stores.postgres.ahead import Ahead, Hint, Reach, offers

FAIR = Plan("q", "t")
LOW, HIGH = "t", "u"
NAMES = tuple(f"t{letter}" for letter in "abcdefgh")
PLACES = (*NAMES, *map(limits.behind, NAMES), LOW, HIGH)


def read(lanes: dict[str, int], cursor: Cursor, reach: Reach) -> Ahead:
    """Read as the statement does: once round from where the turn stands."""
    begin = min(max(LOW, cursor.lane), HIGH)
    ring = sorted(lanes, key=lambda name: (name < begin, name))[: reach.many]
    return Ahead((LOW, HIGH), cursor, reach, {name: best(lanes, name, reach.each) for name in ring})


def best(lanes: dict[str, int], name: str, each: int) -> list[Offer]:
    return [Offer((), (name, str(job))) for job in range(lanes[name])][:each]


@settings(max_examples=500)
@given(
    lanes=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5)),
    cursor=st.sampled_from(("", "kx", "zz", *NAMES)).map(Cursor),
    reach=st.builds(Reach, st.integers(1, 9), st.integers(1, 4)),
    question=st.tuples(st.sampled_from(PLACES), st.sampled_from(PLACES), st.integers(1, 9), st.integers(1, 6)),
    shut=st.sets(st.sampled_from(NAMES)),
)
def test_what_was_read_ahead_answers_rightly_or_not_at_all(
    lanes: dict[str, int], cursor: Cursor, reach: Reach, question: tuple[str, str, int, int], shut: set[str]
) -> None:
    first, until, many, each = question
    names = [name for name in sorted(lanes) if first <= name < until][:many]
    found = read(lanes, cursor, reach).lanes(first, until, many, each, shut.__contains__)
    if found is None:
        return
    assert [name for name, _ in found] == names
    for name, shown in found:
        whole = best(lanes, name, each)
        assert shown == whole or (name in shut and shown == whole[: len(shown)] and shown)


@given(lanes=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), min_size=1), at=st.sampled_from(NAMES))
def test_the_first_question_of_a_claim_needs_no_other_look(lanes: dict[str, int], at: str) -> None:
    """Whether the turn goes on where it stands, or behind it."""
    reach = Reach.of(FAIR, 4, Hint())
    ahead = read(lanes, Cursor(at), reach)
    for first in (at, limits.behind(at)):
        assert ahead.lanes(first, HIGH, 4, 1, lambda _: False) is not None


def test_as_many_lanes_are_read_as_the_last_claim_went_through() -> None:
    assert Reach.of(FAIR, 100, Hint()) == (11, 10)
    assert Reach.of(FAIR, 100, Hint(lanes=2)) == (11, 50)
    assert Reach.of(FAIR, 100, Hint(seen=80)) == (81, 10)
    assert Reach.of(FAIR, 100, Hint(seen=9_999)) == (VISITS, 10)
    assert Reach.of(FAIR, 100, Hint(lanes=2, seen=2, shut=True)) == (11, 1)


def test_jobs_are_read_with_what_ranks_them() -> None:
    assert offers(None, None) == []
    assert offers("(0,1);(0,2)", "a;b") == [Offer((), ("(0,1)", "a")), Offer((), ("(0,2)", "b"))]
    assert offers("(0,1);(7,2)", "a;b", ["-3 17;0 5"]) == [
        Offer((1, -3, 17, "a"), ("(0,1)", "a")),
        Offer((1, 0, 5, "b"), ("(7,2)", "b")),
    ]
