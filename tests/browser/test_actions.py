"""Everything that can be pressed does what it says, says what it did, and leaves a line in the audit trail."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast, Permanent
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Claim
from holdfast.server.dashboard import looking
from tests.browser.conftest import Visit, Visiting, serving
from tests.servers import until
from tests.workers import running


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db", upkeep=0.2, lease=6, heartbeat=0.2)) as made:

        @made.job(queue="mail")
        def greet(name: str) -> str:
            return f"Hello, {name}!"

        @made.job(queue="documents")
        def read(document: str) -> None:
            raise Permanent(code="unsupported_format")

        @made.job(queue="documents")
        async def wait() -> None:
            await asyncio.Event().wait()

        yield made


@pytest.fixture
def visit(app: Holdfast, visiting: Visiting) -> Iterator[Visit]:
    with serving(app) as address:
        made = visiting(address)
        yield made
        made.page.close()


def fail(app: Holdfast, count: int) -> None:
    for number in range(count):
        app.enqueue("read", {"document": f"{number}.wpd"}, tenant="acme")
    with running(app, queues=["documents"]):
        until(lambda: app.counts()["dead"] == count, "the documents are refused")


def deeds(app: Holdfast) -> list[tuple[str, str]]:
    return [(deed.what, deed.target) for deed in app.trail.list()]


def test_a_waiting_job_is_cancelled_after_it_was_confirmed(app: Holdfast, visit: Visit) -> None:
    job = app.enqueue("greet", {"name": "Ada"})
    page = visit.go(f"jobs/{job.id}")
    page.get_by_role("link", name="Cancel…").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Cancel 1 job?"
    assert job.refresh().state == "queued"
    visit.press("Cancel 1 job")
    assert visit.notice() == "1 job was cancelled, or asked to stop."
    assert page.url.endswith(f"/jobs/{job.id}")
    assert job.refresh().state == "cancelled"
    assert deeds(app) == [("job.cancel", str(job.id))]


def test_a_running_job_is_asked_to_stop(app: Holdfast, visit: Visit) -> None:
    job = app.enqueue("wait", {})
    with running(app, queues=["documents"]):
        until(lambda: job.refresh().state == "running", "it runs")
        visit.go(f"confirm?verb=cancel&id={job.id}")
        visit.press("Cancel 1 job")
        visit.notice()
        until(lambda: job.refresh().state == "cancelled", "it stops")


def test_a_dead_job_is_redriven(app: Holdfast, visit: Visit) -> None:
    fail(app, 1)
    (job,) = app.find(state="dead")
    visit.go(f"jobs/{job.id}")
    visit.press("Redrive")
    assert visit.notice() == "1 job was redriven."
    assert (job.refresh().state, job.generation) == ("queued", 2)
    assert deeds(app) == [("job.redrive", str(job.id))]


def test_selected_jobs_are_counted_before_they_are_cancelled(app: Holdfast, visit: Visit) -> None:
    jobs = [app.enqueue("greet", {"name": name}) for name in ("Ada", "Grace", "Edsger")]
    jobs[1].cancel()
    page = visit.go("jobs")
    page.get_by_label("All on this page").check()
    assert page.locator("tbody input[name=id]:checked").count() == 3
    page.locator("tbody input[name=id]").first.uncheck()
    assert page.get_by_label("All on this page").evaluate("box => box.indeterminate")
    visit.press("Cancel selected…")
    assert page.get_by_role("heading", level=1).inner_text() == "Cancel 1 job?"
    assert "1 more was found that cannot be cancelled" in page.locator("main").inner_text()
    visit.press("Cancel 1 job")
    visit.notice()
    assert [job.refresh().state for job in jobs] == ["cancelled", "cancelled", "queued"]


def test_all_that_pass_a_filter_are_cancelled_and_no_others(app: Holdfast, visit: Visit) -> None:
    for number in range(60):
        app.enqueue("greet", {"name": str(number)}, tenant="acme" if number % 2 else "globex")
    page = visit.go("jobs?kind=greet&tenant=acme")
    visit.press("Cancel all…")
    visit.press("Cancel 30 jobs")
    assert visit.notice() == "30 jobs were cancelled, or asked to stop."
    assert app.counts()["cancelled"] == 30
    assert all(job.tenant == "acme" for job in app.find(state="cancelled"))
    assert page.url.endswith("/jobs")
    assert deeds(app) == [("job.cancel", "30 jobs")]


def test_a_job_that_ended_meanwhile_stays_as_it_is(app: Holdfast, visit: Visit) -> None:
    job, other = (app.enqueue("greet", {"name": name}) for name in ("Ada", "Grace"))
    visit.go(f"confirm?verb=cancel&id={job.id}&id={other.id}")
    with running(app, queues=["mail"]):
        until(lambda: job.refresh().state == other.refresh().state == "succeeded", "they are done")
    visit.press("Cancel 2 jobs")
    assert visit.notice() == "0 jobs were cancelled, or asked to stop; 2 could not be, and are unchanged."
    assert deeds(app) == []


def test_a_group_of_dead_letters_is_redriven(app: Holdfast, visit: Visit) -> None:
    fail(app, 7)
    page = visit.go("dead")
    assert "unsupported_format" in page.locator("table").inner_text()
    page.get_by_role("link", name="Redrive group…").click()
    visit.press("Redrive 7 jobs")
    assert visit.notice() == "7 jobs were redriven."
    assert page.url.endswith("/dead")
    assert app.counts()["queued"] == 7


def test_a_queue_is_paused_and_resumed(app: Holdfast, visit: Visit) -> None:
    app.enqueue("greet", {"name": "Ada"})
    visit.go("queues")
    visit.press("Pause mail")
    assert visit.notice() == "The queue 'mail' was paused."
    assert app.paused() == {"mail"}
    visit.press("Resume mail")
    visit.page.wait_for_selector("text=The queue 'mail' was resumed.")
    assert app.paused() == frozenset()
    assert deeds(app) == [("queue.resume", "mail"), ("queue.pause", "mail")]


def test_a_tenant_is_paused_after_it_was_confirmed_and_resumed(app: Holdfast, visit: Visit) -> None:
    app.enqueue("greet", {"name": "Ada"}, tenant="acme")
    page = visit.go("tenants")
    page.get_by_role("link", name="Pause tenant acme…").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Pause the tenant acme?"
    assert app.pauses().tenants == frozenset()
    visit.press("Pause tenant")
    assert visit.notice() == "The tenant 'acme' was paused."
    assert page.url.endswith("/tenants")
    assert app.pauses().tenants == {"acme"}
    visit.press("Resume tenant acme")
    page.wait_for_selector("text=The tenant 'acme' was resumed.")
    assert app.pauses().tenants == frozenset()
    assert deeds(app) == [("tenant.resume", "acme"), ("tenant.pause", "acme")]


def test_a_kind_is_paused_by_its_name_and_resumed(app: Holdfast, visit: Visit) -> None:
    page = visit.go("queues")
    page.get_by_label("Another kind").fill(" of another program ")
    visit.press("Pause…")
    visit.press("Pause kind")
    assert visit.notice() == "The kind 'of another program' was paused."
    assert page.url.endswith("/queues")
    assert app.pauses().kinds == {"of another program"}
    visit.press("Resume kind of another program")
    page.wait_for_selector("text=The kind 'of another program' was resumed.")
    page.get_by_role("link", name="Pause kind greet…").click()
    visit.press("Pause kind")
    page.wait_for_selector("text=The kind 'greet' was paused.")
    assert app.pauses().kinds == {"greet"}
    assert [what for what, _ in deeds(app)] == ["kind.pause", "kind.resume", "kind.pause"]


def test_the_tenants_of_a_limit_stay_open_while_the_page_follows_what_they_use(app: Holdfast, visit: Visit) -> None:
    app.limits.set("mail", concurrency=2, per="tenant")
    jobs = [app.enqueue("greet", {"name": "Ada"}, tenant="acme") for _ in range(3)]
    app.store.claim(Claim("w", "l", MINUTE, 1))
    page = visit.go("queues")
    page.get_by_text("1 tenant", exact=True).click()
    page.wait_for_selector("details[open] >> text=1 of 2 running")
    app.store.claim(Claim("w", "l", MINUTE, 1))
    page.wait_for_selector("details[open] >> text=2 of 2 running")
    assert "full for 1 of 1" in page.get_by_role("row", name="2 at once per tenant").inner_text()
    assert [job.refresh().state for job in jobs].count("running") == 2


def test_a_schedule_is_run_paused_and_resumed(app: Holdfast, visit: Visit) -> None:
    app.schedules.add("nightly / report", app.prepare("greet", {"name": "Ada"}), cron="0 3 * * *")
    visit.go("schedules")
    visit.press("Run nightly / report now")
    assert re.fullmatch(r"The schedule 'nightly / report' was run: job [0-9a-f-]{36}\.", visit.notice())
    assert app.counts()["queued"] == 1
    visit.press("Pause nightly / report")
    visit.page.wait_for_selector("text=was paused.")
    assert app.schedules.list()[0].paused
    visit.press("Resume nightly / report")
    visit.page.wait_for_selector("text=was resumed.")
    assert [what for what, _ in deeds(app)] == ["schedule.resume", "schedule.pause", "schedule.run"]
    assert "nightly / report" in visit.go("trail").locator("table").inner_text()


def test_a_payload_is_fetched_only_when_asked_for(app: Holdfast, visit: Visit) -> None:
    job = app.enqueue("greet", {"name": "Ada Lovelace"})
    page = visit.go(f"jobs/{job.id}")
    assert "Ada Lovelace" not in page.content()
    page.get_by_role("button", name="Show payload").click()
    page.wait_for_selector("#contents pre")
    assert '"name": "Ada Lovelace"' in page.locator("#contents").inner_text()


def test_filters_and_pages_are_kept_in_the_address(app: Holdfast, visit: Visit) -> None:
    jobs = [app.enqueue("greet", {"name": str(number)}, tenant="acme") for number in range(70)]
    app.enqueue("read", {"document": "a"})
    page = visit.go("jobs")
    page.get_by_label("Kind").fill("greet")
    page.get_by_label("State").select_option("queued")
    visit.press("Find")
    page.wait_for_url("**/jobs?*kind=greet*")
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**before=*")
    assert "kind=greet" in page.url
    assert page.locator("tbody tr").count() == 20
    assert str(jobs[0].id)[-8:] in page.locator("tbody tr").last.inner_text()
    page.reload()
    assert page.get_by_label("Kind").input_value() == "greet"


def test_an_id_leads_to_its_job(app: Holdfast, visit: Visit) -> None:
    job = app.enqueue("greet", {"name": "Ada"})
    page = visit.go("jobs")
    page.get_by_label("Job id").fill(f" {job.id} ")
    visit.press("Find")
    page.wait_for_url(f"**/jobs/{job.id}")


def test_counters_move_by_themselves(app: Holdfast, visit: Visit) -> None:
    page = visit.go()
    assert page.locator(".counter.state-queued dd").inner_text() == "0"
    app.enqueue_many([app.prepare("greet", {"name": "Ada"}) for _ in range(1_234)])
    page.wait_for_selector(".counter.state-queued dd:has-text('1,234')")
    with running(app, queues=["mail"]):
        page.wait_for_selector(".counter.state-succeeded dd:has-text('1,234')")
    page.wait_for_selector("figure .line-0 polyline")


def test_the_theme_is_chosen_and_kept(app: Holdfast, visit: Visit) -> None:
    page = visit.go("jobs")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    visit.press("Theme: automatic")
    assert page.evaluate(ground) == light
    visit.press("Theme: light")
    dark = page.evaluate(ground)
    assert dark != light
    assert visit.go("queues").evaluate(ground) == dark


def test_a_rare_job_is_found_however_far_back_it_is(
    app: Holdfast, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "_BUDGET", 0.0)
    job = app.enqueue("greet", {"name": "Ada"}, key="wanted")
    app.enqueue_many([app.prepare("greet", {"name": "x"}) for _ in range(900)])
    page = visit.go("jobs?key=wanted")
    page.wait_for_selector(f"text=…{str(job.id)[-8:]}")
    assert "key=wanted" in page.url
    assert page.get_by_label("Key", exact=True).input_value() == "wanted"
