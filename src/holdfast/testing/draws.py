"""What the random walk of `machine` draws from: small sets, so that things collide."""

from hypothesis import strategies as st

from holdfast.domain import lifecycle
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention, State, Trigger
from holdfast.domain.limits import ALL, ROOMY, Limit, Rule
from holdfast.domain.moments import HORIZON, SECOND, Micros
from holdfast.domain.move import Move, joined

LEASE: Micros = 5 * SECOND
TTL: Micros = 3 * SECOND
RETENTION = Retention(succeeded=4 * SECOND, cancelled=9 * SECOND, dead=20 * SECOND)
QUEUES = ("a", "b")
OWNERS = ("ada", "bob")
TENANTS = ("", "t")
SIGNALS = ("go", "no")
SINKS = ("hook", "log")
SCHEDULES = ("daily", "it's")
BOOKS = ("tokens", "trail")
NAMES = ("a", "b'ü", "c")

moments = st.sampled_from([0, 1, SECOND, 3 * SECOND])
places = st.integers(0, 1_000)

news = st.builds(
    NewJob,
    kind=st.sampled_from(["echo", "mail"]),
    payload=st.sampled_from(['{"a":1,"b":2}', '{"b":2,"a":1}', '"ü\'"', '{"$artifact":"in"}']),
    queue=st.sampled_from(QUEUES),
    tenant=st.sampled_from(TENANTS),
    priority=st.sampled_from([0, 0, 1, -1]),
    retry=st.sampled_from(["fixed:1000000:0:9000000", "exponential:500000:0.5:9000000"]),
    max_attempts=st.integers(1, 3),
    crash_cap=st.integers(1, 3),
    key=st.sampled_from([None, None, "k1", "k2"]),
    key_ttl=st.sampled_from([None, TTL]),
    delay=st.sampled_from([0, 0, 0, 1, SECOND, 3 * SECOND]),
    run_at=st.none() | st.none() | st.integers(-2, 2).map(lambda n: 1_767_225_600 * SECOND + n * SECOND),
    expires_after=st.sampled_from([None, None, None, None, 0, 2 * SECOND]),
    steps_total=st.integers(0, 2),
    state=st.sampled_from([State.QUEUED, State.QUEUED, State.QUEUED, State.CREATED]),
    user=st.sampled_from([None, "zoë"]),
    trigger=st.sampled_from(list(Trigger)).map(str),
    trace_id=st.sampled_from([None, "trace 1"]),
    parent=st.none(),
    code_version=st.sampled_from([0, 0, 2]),
    credits=st.sampled_from([0, 0, 0, 2, 5]),
    reserved=st.just(0),
    unique=st.sampled_from([None, None, "active", "waiting"]),
    steps=st.sampled_from([(), (), (), (("s", "1"),), (("t", None), ("~n", '{"$artifact":"step"}'))]),
    group=st.sampled_from([None, None, "x", "y"]),
)
"""Jobs to store; `parent` and the credits set aside are not theirs to say."""

CHILDREN = (
    NewJob("child", "{}", "b", delay=SECOND),
    NewJob("child", '"ü"', "a", "t", priority=1, credits=2, code_version=3),
    NewJob("child", '{"$artifact":"in"}', "b", credits=1, state=State.CREATED, steps=(("s", "1"),), expires_after=0),
)

LIMITS = (
    Limit(concurrency=2),
    Limit("tenant", concurrency=1, full="drop"),
    Limit("tenant", concurrency=2),
    Limit("key", concurrency=1, full="replace"),
    Limit("key", rate=(1, SECOND), burst=2),
    Limit("tenant", rate=(2, SECOND)),
    Limit(rate=(3, SECOND), burst=3),
    Limit(concurrency=7),
    Limit("tenant", concurrency=6),
    Limit("tenant", concurrency=ROOMY),
    Limit(rate=(9, SECOND), burst=9),
)

rules = st.builds(
    Rule,
    queue=st.sampled_from([*QUEUES, *QUEUES, ALL]),
    order=st.just("priority"),
    weights=st.just({}),
    aging=st.sampled_from([None, None, SECOND]),
    limits=st.lists(st.sampled_from(LIMITS), max_size=3, unique=True).map(tuple),
).flatmap(
    lambda rule: st.sampled_from([rule, rule._replace(order="fair"), rule._replace(order="fair", weights={"t": 2})])
)
"""Rules of any kind, many of which would be refused for a user: a store does as they say."""

wishes = st.fixed_dictionaries(
    {
        "owner": st.sampled_from(OWNERS),
        "lease": st.sampled_from([0, SECOND, LEASE]),
        "limit": st.integers(0, 4),
        "queues": st.none() | st.dictionaries(st.sampled_from([*QUEUES, "c"]), st.integers(0, 3)),
        "full": st.frozensets(st.sampled_from(QUEUES), max_size=1),
        "tenant": st.sampled_from([None, None, None, *TENANTS]),
    }
)

filters = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["echo", "nothing"]),
        "queue": st.sampled_from(QUEUES),
        "tenant": st.sampled_from(TENANTS),
        "error_code": st.sampled_from(["flaky", "lease_expired"]),
        "key": st.sampled_from(["k1", "k2"]),
    },
)

VERBS = (
    *("checkpoint", "suspend", "complete", "fail", "undo", "note", "start", "release", "snooze", "settle_cancel"),
    *("submit", "reap", "postpone", "redrive", "signal", "cancel"),
)
"""In an order in which the next legal verb after an illegal one seldom is the end of a job."""

wills = st.fixed_dictionaries(
    {
        "place": places,
        "verb": st.sampled_from(
            [*VERBS, "checkpoint", "checkpoint", "checkpoint", "suspend", "fail", "fail", "undo", "undo"]
        ),
        "when": st.sampled_from(["now", "now", "now", "now", "then", "forged"]),
        "failure": st.builds(
            Failure, st.sampled_from(["flaky", "expired"]), st.sampled_from(["", "it's"]), st.booleans()
        ),
        "draw": st.floats(0, 0.999),
        "step": st.sampled_from("st"),
        "signal": st.sampled_from(SIGNALS),
        "delay": st.sampled_from([0, SECOND, HORIZON]),
        "heard": st.integers(0, 2),
        "undoable": st.booleans(),
        "spend": st.sampled_from([0, 0, 0, 1, 3]),
        "children": st.lists(st.sampled_from(CHILDREN), max_size=2),
        "told": st.booleans(),
        "carries": st.booleans(),
    }
)
"""What somebody may want to do to a job, with all that a move of that verb may need."""


def completed(job: JobRecord, step: str, result: str | None, place: int, spend: int) -> Move:
    """Complete a job; one in three records its last step with it, if it can."""
    end = lifecycle.complete(job, result, RETENTION, spend=spend)
    last = lifecycle.checkpoint(job, step, result, spend=spend) if place % 3 == 0 else None
    return end if last is None else joined(job, last, end) or end
