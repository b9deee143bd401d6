"""Going round the lanes: whatever sizes claims have, they go as if jobs were taken one by one, round by round."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.gates import Gates, Spare, level, refill, spare, tokens
from holdfast.domain.limits import Limit, Plan, Rule, Rules, split
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.ring import VISITS, WIDE, WINDOW, Offer, Ring, choose, rank
from holdfast.domain.way import AT_ONCE, Cursor

TENANTS = ("", "a", "b", "c", "d")
NOW: Micros = 10**15


class Shown:
    """Lanes in a dictionary, which count how often they are looked at."""

    def __init__(self, lanes: dict[str, list[int]]) -> None:
        self.jobs = lanes
        self.looks = 0

    def lanes(self, first: str, until: str, many: int, each: int) -> list[tuple[str, list[Offer]]]:
        self.looks += 1
        names = [name for name in sorted(self.jobs) if first <= name < until and self.jobs[name]]
        return [(name, [Offer((job,), job) for job in self.jobs[name][:each]]) for name in names[:many]]


def one_by_one(
    lanes: dict[str, list[int]], plan: Plan, cursor: Cursor, most: int, free: dict[str, int]
) -> tuple[list[int], Cursor]:
    """The plainest way to go round: look at the whole ring for every single job."""
    taken: list[int] = []

    def open_(lane: str) -> bool:
        return bool(lanes.get(lane)) and free[lane] > 0

    while len(taken) < most:
        lane, used, share = cursor
        if not (lane and open_(lane) and used < plan.weights.get(lane[1:], 1) * share):
            ring = sorted(lanes)
            after = [name for name in ring if name > lane] + [name for name in ring if name <= lane]
            last, lane, used = lane, next((name for name in after if open_(name)), ""), 0
            if not lane:
                break
            if not last or lane <= last:
                share = max(1, most // AT_ONCE)
        taken.append(lanes[lane].pop(0))
        free[lane] -= 1
        cursor = Cursor(lane, used + 1, share)
    return taken, cursor


@settings(max_examples=400)
@given(
    jobs=st.lists(st.sampled_from(TENANTS), max_size=40).map(lambda few: 4 * few),
    weights=st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 4)),
    claims=st.lists(st.tuples(st.integers(0, 12) | st.sampled_from((49, 50, 75, 100)), st.integers(0, 6)), max_size=8),
    limit=st.none() | st.integers(1, 6),
)
def test_claims_of_any_size_take_turns_like_single_ones(
    jobs: list[str], weights: dict[str, int], claims: list[tuple[int, int]], limit: int | None
) -> None:
    limits = () if limit is None else (("q", Limit("tenant", concurrency=limit)),)
    plan = Plan("q", "t", weights, None, limits)
    lanes: dict[str, list[int]] = defaultdict(list)
    for number, tenant in enumerate(jobs):
        lanes[f"t{tenant}"].append(number)
    model = {name: list(line) for name, line in lanes.items()}
    free = {name: limit or len(jobs) for name in model}
    cursor = expected_cursor = Cursor()
    running: dict[str, int] = defaultdict(int)
    for most, hint in claims:
        gates = Gates(NOW, lambda subject: running[subject[2]], lambda _: None)
        ring = Ring(plan, Shown(lanes), gates, NOW, cursor=cursor, most=most, lanes=hint)
        taken = [offer.ref for _, offer in choose([ring], most)]
        expected, expected_cursor = one_by_one(model, plan, expected_cursor, most, free)
        assert taken == expected
        cursor = ring.cursor
        assert cursor == expected_cursor
        for name, line in lanes.items():
            running[name[1:]] += sum(job in taken for job in line)
            lanes[name] = [job for job in line if job not in taken]


def one_by_one_of_tenants(
    lanes: dict[str, list[int]], plan: Plan, cursor: Cursor, most: int, free: dict[str, int]
) -> tuple[list[int], Cursor]:
    """The plainest way to go round tenants whose keys have lanes: look at all of them for every single job."""
    taken: list[int] = []

    def best(tenant: str) -> tuple[int, str] | None:
        mine = (name for name in lanes if name.startswith(f"k{tenant}\x1f"))
        return min(((lanes[name][0], name) for name in mine if lanes[name] and free[name] > 0), default=None)

    ring = sorted({split(name)[0] for name in lanes}, key=lambda tenant: f"{tenant}\x1f")
    while len(taken) < most:
        lane, used, share = cursor
        last = split(lane)[0] if lane else None
        tenant = last
        if tenant is None or best(tenant) is None or used >= plan.weights.get(tenant, 1) * share:
            after = [one for one in ring if last is not None and one > last]
            after += [one for one in ring if one not in after]
            tenant, used = next((one for one in after if best(one)), None), 0
            if tenant is None:
                break
            if last is None or tenant <= last:
                share = max(1, most // AT_ONCE)
        found = best(tenant)
        assert found is not None
        taken.append(lanes[found[1]].pop(0))
        free[found[1]] -= 1
        cursor = Cursor(found[1], used + 1, share)
    return taken, cursor


@settings(max_examples=400)
@given(
    jobs=st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from(["", "x", "y", "z"])), max_size=40),
    weights=st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 4)),
    claims=st.lists(st.integers(0, 12) | st.sampled_from((49, 50, 75, 100)), max_size=8),
    limit=st.none() | st.integers(1, 3),
    times=st.integers(1, 4),
)
def test_tenants_take_turns_though_their_keys_have_lanes_of_their_own(
    jobs: list[tuple[str, str]], weights: dict[str, int], claims: list[int], limit: int | None, times: int
) -> None:
    limits = (("q", Limit("key", concurrency=limit or 1)),) if limit else ()
    plan = Plan("q", "k", weights, None, limits, nested=True)
    lanes: dict[str, list[int]] = defaultdict(list)
    for number, (tenant, group) in enumerate(times * jobs):
        lanes[plan.lane(tenant, group)].append(number)
    model = {name: list(line) for name, line in lanes.items()}
    free = {name: limit if limit and split(name)[1] else len(jobs) * times for name in model}
    cursor = expected_cursor = Cursor()
    running: dict[str, int] = defaultdict(int)
    places: dict[str, str] = {}
    for most in claims:
        gates = Gates(NOW, lambda subject: running[subject[2]], lambda _: None)
        ring = Ring(plan, Shown(lanes), gates, NOW, cursor=cursor, most=most, places=places)
        taken = [offer.ref for _, offer in choose([ring], most)]
        expected, expected_cursor = one_by_one_of_tenants(model, plan, expected_cursor, most, free)
        assert taken == expected
        cursor = ring.cursor
        assert cursor == expected_cursor
        for name, line in lanes.items():
            running[name[1:]] += sum(job in taken for job in line)
            lanes[name] = [job for job in line if job not in taken]


def test_no_key_of_a_tenant_that_has_many_is_passed_over_for_ever() -> None:
    keys = 5 * WINDOW
    lanes = {f"ka\x1f{key:03}": [keys * n + key for n in range(50)] for key in range(keys)}
    line, gates = Shown(lanes | {"kb\x1fx": list(range(10**6, 10**6 + 9_999))}), Gates(NOW, lambda _: 0, lambda _: None)
    cursor, places, served = Cursor(), dict[str, str](), defaultdict[str, int](int)
    for _ in range(4 * keys):
        ring = Ring(Plan("q", "k", nested=True), line, gates, NOW, cursor=cursor, most=1, places=places)
        [(_, offer)] = choose([ring], 1)
        cursor = ring.cursor
        served[cursor.lane] += 1
        line.jobs[cursor.lane].remove(offer.ref)
    assert served["kb\x1fx"] == 2 * keys
    assert len(served) == keys + 1


def test_a_tenant_with_more_closed_keys_than_one_claim_looks_at_is_served_by_a_later_one() -> None:
    last = VISITS + 9
    lanes = {f"ka\x1f{key:05}": [key] for key in range(last + 1)}
    plan = Plan("q", "k", limits=(("q", Limit("key", concurrency=1)),), nested=True)
    gates = Gates(NOW, lambda subject: int(subject[2] != f"a\x1f{last:05}"), lambda _: None)
    cursor, places, taken, claims = Cursor(), dict[str, str](), list[int](), 0
    while not taken:
        ring = Ring(plan, Shown(lanes), gates, NOW, cursor=cursor, most=5, places=places)
        taken, cursor, claims = [offer.ref for _, offer in choose([ring], 5)], ring.cursor, claims + 1
        assert claims < 4
        assert taken or not ring.shut
    assert taken == [last]


@settings(max_examples=400)
@given(
    jobs=st.lists(st.sampled_from(TENANTS), max_size=60),
    claims=st.lists(st.tuples(st.integers(0, 12) | st.sampled_from((50, 100)), st.integers(0, 6)), max_size=8),
    limit=st.none() | st.integers(1, 9),
    alone=st.booleans(),
)
def test_where_nobody_takes_turns_the_best_that_may_start_goes_next(
    jobs: list[str], claims: list[tuple[int, int]], limit: int | None, alone: bool
) -> None:
    plan = Plan("q", "t", limits=(("q", Limit("tenant", concurrency=limit)),) if limit else (), ordered=True)
    lanes: dict[str, list[int]] = defaultdict(list)
    for number, tenant in enumerate(jobs):
        lanes[f"t{tenant}"].append(number)
    running: dict[str, int] = defaultdict(int)
    for most, hint in claims:
        gates = Gates(NOW, lambda subject: running[subject[2]], lambda _: None)
        ring = Ring(plan, Shown(lanes), gates, NOW, cursor=Cursor("tb", 1), most=most, lanes=hint)
        other = Ring(Plan("r"), Shown({}), gates, NOW, cursor=Cursor(), most=0)
        taken = [offer.ref for _, offer in choose([ring] if alone else [ring, other], most)]
        expected: list[int] = []
        for job in sorted(job for line in lanes.values() for job in line):
            if len(expected) < most and running[jobs[job]] < (limit or len(jobs)):
                running[jobs[job]] += 1
                expected.append(job)
        assert taken == expected
        assert ring.cursor == ring.begun
        assert ring.shut is (most > len(expected))
        for name, line in lanes.items():
            lanes[name] = [job for job in line if job not in taken]


def test_where_nobody_takes_turns_every_lane_of_many_is_compared_in_time() -> None:
    number = 5 * WIDE
    line = Shown({f"t{n:05}": [number + n, 10 * number + n] for n in range(number)} | {"t99999": [1]})
    gates, cursor, taken = Gates(NOW, lambda _: 0, lambda _: None), Cursor(), list[int]()
    plan = Plan("q", "t", ordered=True)
    for _ in range(6):
        ring = Ring(plan, line, gates, NOW, cursor=cursor, most=10)
        got = [offer.ref for _, offer in choose([ring], 10)]
        assert ring.seen <= WIDE
        assert not ring.shut
        taken, cursor = taken + got, ring.cursor
        line.jobs = {name: [job for job in jobs if job not in got] for name, jobs in line.jobs.items()}
    assert taken[:10] == list(range(number, number + 10))
    assert taken[50] == 1


def test_where_nobody_takes_turns_closed_lanes_are_passed_over_so_many_at_a_claim() -> None:
    last = VISITS + WIDE
    lanes = {f"t{n:05}": [n] for n in range(last + 1)}
    plan = Plan("q", "t", limits=(("q", Limit("tenant", concurrency=1)),), ordered=True)
    gates = Gates(NOW, lambda subject: int(subject[2] != f"{last:05}"), lambda _: None)
    first = Ring(plan, Shown(lanes), gates, NOW, cursor=Cursor(), most=5)
    assert choose([first], 5) == []
    assert not first.shut
    again = Ring(plan, Shown(lanes), gates, NOW, cursor=first.cursor, most=5)
    assert [offer.ref for _, offer in choose([again], 5)] == [last]


def test_what_a_claim_looks_at_does_not_grow_with_the_lanes() -> None:
    for number in (200, 10_000):
        line = Shown({f"t{n:05}": [n] for n in range(number)})
        gates = Gates(NOW, lambda _: 0, lambda _: None)
        ring = Ring(Plan("q", "t"), line, gates, NOW, cursor=Cursor("t00050", 1), most=100)
        assert [offer.ref for _, offer in choose([ring], 100)] == list(range(51, 151))
        assert line.looks == 1


def test_a_claim_that_finds_closed_lanes_only_goes_on_from_there() -> None:
    lanes = {f"t{n:05}": [n] for n in range(VISITS + 10)}
    last = f"{VISITS + 9:05}"
    plan = Plan("q", "t", limits=(("q", Limit("tenant", concurrency=1)),))
    gates = Gates(NOW, lambda subject: int(subject[2] != last), lambda _: None)
    first = Ring(plan, Shown(lanes), gates, NOW, cursor=Cursor(), most=5)
    assert choose([first], 5) == []
    assert not first.shut
    again = Ring(plan, Shown(lanes), gates, NOW, cursor=first.cursor, most=5)
    assert [offer.ref for _, offer in choose([again], 5)] == [VISITS + 9]


def test_a_claim_for_one_tenant_goes_round_its_own_lanes() -> None:
    names = [f"k{tenant}\x1f{group}" for tenant in ("a", "ab", "b") for group in ("", "x", "y")]
    lanes = {name: [10 * place, 10 * place + 1] for place, name in enumerate(names)}
    line, gates = Shown(lanes), Gates(NOW, lambda _: 0, lambda _: None)
    cursor, taken = Cursor(), list[int]()
    for most in (1, 1, 2, 9):
        ring = Ring(Plan("q", "k"), line, gates, NOW, cursor=cursor, most=most, tenant="a")
        got = [offer.ref for _, offer in choose([ring], most)]
        taken, cursor = taken + got, ring.cursor
        line.jobs = {name: [job for job in jobs if job not in got] for name, jobs in line.jobs.items()}
    assert taken == [0, 10, 20, 1, 11, 21]


def test_a_claim_for_one_tenant_begins_at_its_first_lane_if_it_stopped_at_one_of_another_shape() -> None:
    line, gates = Shown({"ta": [1], "tb": [2, 3], "tc": [4]}), Gates(NOW, lambda _: 0, lambda _: None)
    ring = Ring(Plan("q", "t"), line, gates, NOW, cursor=Cursor("kb\x1fx", 1), most=9, tenant="b")
    assert [offer.ref for _, offer in choose([ring], 9)] == [2, 3]


@given(
    count=st.integers(1, 7),
    period=st.integers(1, 20).map(lambda n: n * SECOND // 7),
    burst=st.integers(1, 5),
    waits=st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=60),
)
def test_no_window_holds_more_than_its_rate_and_the_burst(
    count: int, period: Micros, burst: int, waits: list[Micros]
) -> None:
    limit = Limit(rate=(count, period), burst=burst)
    plan = Plan("q", limits=(("q", limit),))
    now, full_at = NOW, None
    started: list[Micros] = []
    for wait in waits:
        now += wait
        held = full_at
        gates = Gates(now, lambda _: 0, lambda _, held=held: held)  # type: ignore[misc]
        ready = tokens(limit, full_at, now)
        taken = 0
        while gates.opening(plan, "", None) == now:
            gates.enter(plan, "", None)
            taken += 1
        assert taken == ready
        full_at = gates.drawn.get(("q", "queue", ""), full_at)
        assert refill(limit, full_at, now) > now
        started += [now] * taken
    for place, start in enumerate(started):
        for end in range(place, len(started)):
            assert (end - place + 1 - burst) * period <= count * (started[end] - start)


def test_a_quiet_bucket_is_full_and_one_of_another_rate_starts_anew() -> None:
    limit = Limit(rate=(1, SECOND), burst=3)
    assert tokens(limit, None, NOW) == tokens(limit, NOW - 1, NOW) == 3
    assert level(limit, NOW + 2 * SECOND, NOW) == NOW + 2 * SECOND
    assert tokens(limit, NOW + 2 * SECOND, NOW) == 1
    assert level(limit, NOW + 9 * SECOND, NOW) == NOW


def test_heads_of_several_queues_are_compared() -> None:
    gates = Gates(NOW, lambda _: 0, lambda _: None)
    rules = Rules({"fair": Rule("fair", order="fair")})
    fair = rules.plan("fair")
    assert fair is not None
    rings = [
        Ring(fair, Shown({"ta": [5], "tb": [1]}), gates, NOW, cursor=Cursor(), most=9),
        Ring(fair._replace(queue="other"), Shown({"tc": [2, 6]}), gates, NOW, cursor=Cursor(), most=9),
    ]
    assert [offer.ref for _, offer in choose(rings, 9)] == [2, 5, 1, 6]


def test_a_job_that_has_aged_goes_before_all_others_oldest_first() -> None:
    jobs = [(-9, NOW - 1, 1), (5, NOW - 70, 2), (0, NOW - 90, 3), (-9, NOW - 80, 4)]
    assert sorted(jobs, key=lambda job: rank(job, NOW - 75)) == [jobs[2], jobs[3], jobs[0], jobs[1]]
    assert sorted(jobs, key=lambda job: rank(job, None)) == [jobs[3], jobs[0], jobs[2], jobs[1]]


@given(
    concurrency=st.none() | st.integers(1, 9),
    rate=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
    jobs=st.integers(1, 9),
    running=st.integers(0, 9),
    full_in=st.none() | st.integers(-2, 12).map(lambda seconds: seconds * SECOND),
)
def test_where_there_is_enough_to_spare_every_gate_is_open(
    concurrency: int | None, rate: tuple[int, int] | None, jobs: int, running: int, full_in: Micros | None
) -> None:
    counted = [] if concurrency is None else [Limit(concurrency=concurrency)]
    paced = [] if rate is None else [Limit(rate=(rate[0], SECOND), burst=rate[1])]
    plan = Plan("q", limits=tuple(("q", limit) for limit in (*counted, *paced)))
    found, full_at = spare(plan, jobs), None if full_in is None else NOW + full_in
    if found is None:
        return
    if ((found.running or 0) < running and counted) or ((found.full_in or 0) < (full_in or 0) and paced):
        return
    gates = Gates(NOW, lambda _: running, lambda _: full_at)
    assert gates.room(plan, "", None, jobs) == jobs
    gates.enter(plan, "", None, jobs)
    assert gates.drawn == ({("q", "queue", ""): max(NOW, full_at or 0) + jobs * found.interval} if paced else {})


def test_what_the_queue_as_a_whole_cannot_tell_leaves_nothing_to_spare() -> None:
    roomy = Limit(concurrency=9)
    assert spare(Plan("q", limits=(("q", roomy),)), 8) == Spare(0, None, 0)
    assert spare(Plan("q", limits=(("q", roomy),)), 9) is None
    assert spare(Plan("q", limits=(("*", roomy),)), 1) is None
    assert spare(Plan("q", limits=(("q", roomy), ("q", Limit("tenant", concurrency=6)))), 1) == Spare(4, None, 0)
    assert spare(Plan("q", limits=(("q", Limit("tenant", rate=(1, SECOND), burst=9)),)), 1) is None
    assert spare(Plan("q", limits=(("q", Limit(rate=(1, SECOND), burst=3)),)), 3) == Spare(None, 0, SECOND)
    assert spare(Plan("q", limits=(("q", Limit(rate=(1, SECOND), burst=3)),)), 4) is None
    assert spare(Plan("q"), 1) is None
