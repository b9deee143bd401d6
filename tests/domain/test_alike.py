"""Jobs that are alike are the same as the list of them."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.alike import Alike, Named
from holdfast.domain.job import NewJob

payloads = st.lists(st.text(max_size=3), min_size=1, max_size=12)
likes = st.builds(
    NewJob, st.just("add"), st.just(""), queue=st.sampled_from(["default", "mail"]), priority=st.integers(0, 3)
)
bounds = st.none() | st.integers(-15, 15)


@given(likes, payloads, st.data())
def test_what_is_alike_is_what_a_list_of_it_would_be(like: NewJob, texts: list[str], data: st.DataObject) -> None:
    ids = [f"id-{n}" for n in range(len(texts))]
    jobs = [like._replace(payload=text) for text in texts]
    alike, pairs = Alike(like, texts), list(zip(ids, jobs, strict=True))
    named = Named(ids, alike)
    assert list(alike) == jobs
    assert all(type(new) is NewJob for new in alike)
    assert list(named) == pairs
    assert len(alike) == len(named) == len(texts)
    at = data.draw(st.integers(-len(texts), len(texts) - 1))
    assert (alike[at], named[at]) == (jobs[at], pairs[at])
    part = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert list(alike[part]) == jobs[part]
    assert list(named[part]) == pairs[part]
