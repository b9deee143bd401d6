"""The dashboard without a browser: what it sends, what it refuses, and how much it reads."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from holdfast import Context, Holdfast
from holdfast.client import governed
from holdfast.domain.job import AttemptRecord, State, StepRecord
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.port.store import Capabilities, Claim, WorkerRecord
from holdfast.server import asgi
from holdfast.server.dashboard import charts, looking, samples, stories, words
from holdfast.server.dashboard.looking import Filter
from holdfast.server.serving import Serving
from holdfast.stores.memory import MemoryStore
from tests.domain.records import in_state
from tests.server.calling import called
from tests.servers import until
from tests.workers import running

LONG = 20.0
PAGES = ("", "jobs", "dead", "queues", "schedules", "workers", "tenants", "trail")
SAME = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    match request.param:
        case "postgres":
            url = str(request.getfixturevalue("postgres_url"))
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case _:
            url = "memory://"
    with closing(Holdfast(url)) as made:

        @made.job
        def greet(name: str) -> str:
            return name

        yield made


def test_every_page_and_file_has_the_headers_that_keep_others_out(app: Holdfast) -> None:
    app.enqueue("greet", {"name": "Ada"})
    with called(app, dashboard=True) as client:
        for page in (*PAGES, "jobs/nonsense", "confirm?verb=explode", "static/dashboard.css", "static/htmx.min.js"):
            answer = client.get(f"/{page}")
            assert answer.status_code in (200, 422), page
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert not re.search(r"<script(?! src=)| style=| on[a-z]+=", answer.text) or "static" in page, page
            if "static" not in page:
                assert answer.headers["Cache-Control"] == "no-store"


def test_it_works_under_another_applications_path(app: Holdfast) -> None:
    job = app.enqueue("greet", {"name": "Ada"})
    outer = FastAPI()
    inner = asgi(app, auth=False)
    outer.mount("/ops/jobs", inner)
    outer.state.surface = inner.state.surface
    serving = Serving(outer, "127.0.0.1", 0, auth=False)
    serving.start()
    try:
        with httpx.Client(base_url=serving.address, follow_redirects=True) as client:
            page = client.get("/ops/jobs/jobs")
            links = set(re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', page.text))
            assert all(link.startswith(("/ops/jobs/", "#")) for link in links), links
            broken = [link for link in links - {"#main", "/ops/jobs/confirm"} if client.get(link).status_code != 200]
            assert broken == []
            word = re.findall(
                r'name="word" value="(\w+)"', client.get(f"/ops/jobs/confirm?verb=cancel&id={job.id}").text
            )[0]
            fields = {"verb": "cancel", "ids": str(job.id), "word": word}
            done = client.post("/ops/jobs/bulk", data=fields, headers=SAME)
            assert (done.status_code, "1 job was cancelled" in done.text) == (200, True)
            assert str(done.url).endswith(f"/ops/jobs/jobs/{job.id}")
    finally:
        serving.stop()
        assert serving.join(LONG)
    assert job.refresh().state == "cancelled"


def test_bad_input_gets_a_sentence_and_changes_nothing(app: Holdfast) -> None:
    app.enqueue("greet", {"name": "Ada"})
    with called(app, dashboard=True) as client:
        word = re.findall(r'name="word" value="(\w+)"', client.get("/queues").text)[0]
        asked = [
            "/jobs?state=lost",
            "/jobs?before=x",
            "/jobs?parent=x",
            f"/jobs?kind={'x' * 300}",
            "/confirm?verb=purge",
            "/hold",
            "/hold?what=queue&which=mail",
            "/hold?what=tenant&which=",
            "/hold?what=kind&which=%07",
        ]
        for path in asked:
            answer = client.get(path)
            assert (answer.status_code, "</main>" in answer.text) == (422, True), path
        posts: list[tuple[str, dict[str, str]]] = [
            ("/queues", {"queue": "default", "verb": "drop"}),
            ("/queues", {"queue": "", "verb": "pause"}),
            ("/queues", {"verb": "pause"}),
            ("/hold", {"what": "tenant", "which": "acme", "verb": "drop"}),
            ("/hold", {"what": "tenant", "which": "", "verb": "pause"}),
            ("/hold", {"what": "queue", "which": "mail", "verb": "pause"}),
            ("/schedules", {"name": "none", "verb": "run"}),
            ("/bulk", {"verb": "cancel", "ids": "x"}),
            ("/bulk", {"verb": "purge", "ids": "x"}),
        ]
        for path, fields in posts:
            answer = client.post(path, data={**fields, "word": word}, headers=SAME)
            assert answer.status_code in (404, 422), (path, fields)
            assert "</main>" in answer.text
    assert (app.counts()["queued"], any(app.pauses()), app.trail.list()) == (1, False, [])


@pytest.mark.parametrize(
    "elsewhere", ["//example.org", "/example.org", "\\\\example.org", "https://example.org", "@example.org"]
)
@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_nobody_is_sent_to_another_site(app: Holdfast, elsewhere: str) -> None:
    secret, _ = app.tokens.create("ada", ["operate"])
    with called(app, dashboard=True, auth=True) as client:
        word = re.findall(r'name="word" value="(\w+)"', client.get("/login").text)[0]
        fields = {"token": secret, "word": word, "next": elsewhere}
        assert client.post("/login", data=fields, headers=SAME).headers["Location"] == "/"
        answer = client.get("/confirm", params={"verb": "cancel", "back": elsewhere})
        assert answer.status_code == 422


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_who_logs_in_goes_on_to_the_page_that_was_asked_for(app: Holdfast) -> None:
    secret, _ = app.tokens.create("ada", ["read"])
    with called(app, dashboard=True, auth=True) as client:
        login = client.get("/jobs?state=dead&kind=greet").headers["Location"]
        page = client.get(login).text
        word, following = re.findall(r'name="(?:word|next)" value="([^"]*)"', page)
        fields = {"token": secret, "word": word, "next": unescape(following)}
        assert client.post("/login", data=fields, headers=SAME).headers["Location"] == "/jobs?state=dead&kind=greet"


def test_queues_show_their_orders_and_limits_with_what_is_in_use(app: Holdfast) -> None:
    app.limits.order("default", order="fair", weights={"acme": 3}, aging=90)
    app.limits.set("default", concurrency=1, per="tenant")
    app.limits.set("*", rate="1/h", burst=2)
    for tenant in ("acme", "acme", "globex"):
        app.enqueue("greet", {"name": "Ada"}, tenant=tenant)
    assert len(app.store.claim(Claim("w", "l", MINUTE, 9))) == 2
    with called(app, dashboard=True) as client:
        queues, tenants = (text_of(client.get(path).text) for path in ("/queues", "/tenants"))
    assert "default fair among tenants acme 3, others 1 after 1.5 min" in queues
    assert "all queues 1/h, burst 2 0 of 2 may start full next in" in queues
    assert "default 1 at once per tenant 2 tenants acme 1 of 1 running full until one ends globex" in queues
    assert "full for 2 of 2 jobs wait" in queues
    assert "default full 1" in queues, "the queue itself, because all are"
    assert "Share of default" in tenants
    assert "acme 50 % 1 3 globex 50 % 1 1" in tenants


def test_of_many_tenants_of_a_limit_the_fullest_are_shown(app: Holdfast) -> None:
    app.limits.set("default", concurrency=2, per="tenant")
    jobs = [app.prepare("greet", {"name": "x"}, tenant=f"t{n:03}") for n in (*range(governed.MOST + 10), 59)]
    app.enqueue_many(jobs)
    assert len(app.store.claim(Claim("w", "l", MINUTE, 100))) == len(jobs)
    with called(app, dashboard=True) as client:
        page = text_of(client.get("/queues").text)
    assert "60 tenants t059 2 of 2 running full until one ends t000 1 of 2" in page
    assert page.count(" running open") == governed.MOST - 1
    assert "The fullest 50; 10 more are not shown." in page


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_a_tenants_own_token_sees_its_own_share_and_pause_alone(app: Holdfast) -> None:
    app.limits.order("default", order="fair", weights={"globex": 7})
    app.limits.order("private to globex", order="fair", weights={"globex": 7})
    for tenant in ("acme", "globex"):
        app.enqueue("greet", {"name": "Ada"}, tenant=tenant)
    assert len(app.store.claim(Claim("w", "l", MINUTE, 9))) == 2
    for tenant in ("acme", "globex"):
        app.pause(tenant=tenant)
    secret, _ = app.tokens.create("ada", ["operate"], tenant="acme")
    with called(app, dashboard=True, auth=True) as client:
        word = re.findall(r'name="word" value="(\w+)"', client.get("/login").text)[0]
        client.post("/login", data={"token": secret, "word": word}, headers=SAME)
        page = client.get("/tenants").text
    assert "globex" not in page
    assert "Share of default" in text_of(page)
    assert "acme 100 % 1 0 1 0 paused" in text_of(page)
    assert "Pause" not in page


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_how_many_others_wait_is_not_shown_to_a_tenant(app: Holdfast) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, tenant="acme")
    app.enqueue("greet", {"name": "Ada"}, tenant="globex")
    now = app.store.now()
    app.store.enlist(WorkerRecord("w", "host", 1, None, ("greet",), 1, now, now, now + MINUTE, 0))
    secret, _ = app.tokens.create("ada", ["read"], tenant="acme")
    with called(app, dashboard=True, auth=True) as client:
        word = re.findall(r'name="word" value="(\w+)"', client.get("/login").text)[0]
        client.post("/login", data={"token": secret, "word": word}, headers=SAME)
        page = text_of(client.get(f"/jobs/{job.id}").text)
    assert app.explain(job.id).details["queued"] == 2
    assert "It is due and waits its turn. waiting" in page


class Unable(MemoryStore):
    """A store without flow control."""

    capabilities = Capabilities(durable=False, shared=False)


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_a_store_without_flow_control_shows_nothing_of_it_and_refuses(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_opened", Unable())
    app.enqueue("greet", {"name": "Ada"}, tenant="acme")
    with called(app, dashboard=True) as client:
        queues, tenants = client.get("/queues").text, client.get("/tenants").text
        assert not re.search("/hold|Kinds|Limits|Another", queues + tenants)
        word = re.findall(r'name="word" value="(\w+)"', queues)[0]
        fields = {"what": "tenant", "which": "acme", "verb": "pause", "word": word}
        for answer in (client.get("/hold", params=fields), client.post("/hold", data=fields, headers=SAME)):
            assert (answer.status_code, "This store has no flow control" in answer.text) == (422, True)
    assert app.trail.list() == []


def text_of(page: str) -> str:
    """Give the words of a page, as they are read."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_a_forged_notice_is_not_shown(app: Holdfast) -> None:
    with called(app, dashboard=True) as client:
        client.get("/jobs")
        client.cookies.set("holdfast_notice", "WyJZb3Ugd29uIiwgZmFsc2Vd.00")
        assert "You won" not in client.get("/jobs").text


def test_a_stream_ends_when_the_server_stops(app: Holdfast) -> None:
    seen: list[str] = []
    begun = threading.Event()

    def listen(address: str) -> None:
        with httpx.stream("GET", f"{address}/live", timeout=LONG) as stream:
            for line in stream.iter_lines():
                seen.append(line)
                begun.set()

    with called(app, dashboard=True) as client:
        listener = threading.Thread(target=listen, args=(str(client.base_url).rstrip("/"),))
        listener.start()
        assert begun.wait(LONG)
    listener.join(LONG)
    assert not listener.is_alive()
    assert seen[0] == "event: counters"


@pytest.mark.parametrize("app", ["sqlite"], indirect=True)
def test_a_rare_job_is_found_by_looking_further_back(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_BUDGET", 0.0)
    wanted = app.enqueue("greet", {"name": "Ada"}, key="wanted")
    app.enqueue_many([app.prepare("greet", {"name": "x"}) for _ in range(600)])
    first = looking.look(app, Filter(key="wanted").query())
    assert (first.jobs, first.back_to is not None) == ([], True)
    second = looking.look(app, Filter(key="wanted").query(before=first.next))
    third = looking.look(app, Filter(key="wanted").query(before=second.next))
    assert ([job.id for job in third.jobs], third.next) == ([str(wanted.id)], None)


def test_pages_of_a_list_are_whole_and_do_not_overlap(app: Holdfast) -> None:
    jobs = [str(app.enqueue("greet", {"name": str(n)}, tenant="acme" if n % 3 else "globex").id) for n in range(130)]
    seen: list[str] = []
    before = None
    while True:
        found = looking.look(app, Filter(tenant="acme").query(before=before))
        seen += [job.id for job in found.jobs]
        if found.next is None:
            break
        before = found.next
    assert seen == [id_ for number, id_ in reversed(list(enumerate(jobs))) if number % 3]


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_samples_are_taken_while_somebody_looks(app: Holdfast) -> None:
    async def look() -> list[samples.Sample]:
        sampler = samples.Sampler(app)
        assert sampler.samples == []
        for _ in range(3):
            sampler.visit()
            await sampler.wait()
            await asyncio.to_thread(app.enqueue, "greet", {"name": "Ada"})
        return sampler.samples

    taken = asyncio.run(look())
    assert [sample.counts["queued"] for sample in taken] == [0, 1, 2]
    assert samples.rates(taken)["default"].enqueued == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_a_jobs_wait_and_run_are_told_once_it_has_ended(app: Holdfast) -> None:
    gate = threading.Event()

    @app.job
    def slow(ctx: Context) -> None:
        gate.wait(LONG)

    job, followed = slow.enqueue(), samples.Followed()
    with running(app):
        until(lambda: job.refresh().state == "running", "it runs")
        first = samples.take(app, followed)
        assert (len(first.waits), first.runs) == (1, [])
        gate.set()
        until(lambda: job.refresh().state == "succeeded", "it is done")
    last = samples.take(app, followed)
    assert (last.waits, len(last.runs)) == ([], 1)


def test_charts_have_gaps_where_nothing_was_seen() -> None:
    drawn = charts.chart("Latency", "seconds", {"waited": [None, 1.0, 2.0, None, 4.0], "ran": [None] * 5}, seconds=300)
    waited, ran = drawn.lines
    assert [len(stretch.split()) for stretch in waited.stretches] == [2, 2]
    assert (ran.stretches, waited.last, ran.last) == ((), 4.0, None)
    assert [label for _, label in drawn.marks] == ["0", "1.25", "2.5", "3.75", "5"]


def test_a_waterfall_tells_what_a_workflow_waited_for() -> None:
    job = in_state(State.RETRYING)._replace(created_at=0)
    attempts = [
        AttemptRecord(1, 1, 1, "w", 1 * SECOND, 3 * SECOND, "snooze", None, None, None),
        AttemptRecord(2, 1, 1, "w", 9 * SECOND, 11 * SECOND, "snooze", None, None, None),
        AttemptRecord(3, 1, 1, "w", 12 * SECOND, 13 * SECOND, "fail", "boom", None, None),
    ]
    steps = [
        StepRecord("charge", '"paid"', 2 * SECOND),
        StepRecord("cool-off", '{"$sleep":6000000}', 3 * SECOND),
        StepRecord("~wait:approval", None, 11 * SECOND),
    ]
    bars = stories.waterfall(job, attempts, steps, "It is retrying.")
    assert [(bar.name, bar.kind, bar.begin // SECOND) for bar in bars] == [
        ("charge", "step", 1),
        ("cool-off", "step", 2),
        ("slept for cool-off", "wait", 3),
        ("waited for the signal approval", "wait", 11),
        ("It is retrying.", "wait", 13),
    ]
    assert all(0 <= place.left <= 996 for place in stories.places([(bar.begin, bar.end) for bar in bars], 20 * SECOND))


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "under 1 ms"), (5_000, "5 ms"), (1_500_000, "1.5 s"), (2_000_000, "2 s"), (90 * SECOND, "1.5 min"),
     (3_600 * SECOND, "1 h"), (200_000 * SECOND, "2.3 d")],
)  # fmt: skip
def test_spans_are_short(micros: int, text: str) -> None:
    assert words.span(micros) == text
    assert words.relative(micros, 2 * micros + 1) in (f"{text} ago", "now")
