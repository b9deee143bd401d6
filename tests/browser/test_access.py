"""Who gets in, what they may press, and what is refused however it is sent."""

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from holdfast import Holdfast
from tests.browser.conftest import SCREENSHOTS, Visit, Visiting, serving


@pytest.fixture
def guarded(app: Holdfast) -> Iterator[str]:
    """Serve jobs of two tenants to those who have a token."""

    @app.job
    def greet(name: str) -> str:
        return name

    for tenant in ("acme", "globex"):
        app.enqueue("greet", {"name": tenant}, tenant=tenant)
        app.grant(tenant, 100)
    app.tokens.create("first", ["admin"])
    with serving(app, auth=True) as address:
        yield address


def enter(visit: Visit, secret: str) -> None:
    visit.go("jobs")
    visit.page.wait_for_url("**/login*")
    visit.page.get_by_label("Token").fill(secret)
    visit.press("Log in")


def test_a_token_opens_a_session_that_can_be_closed(app: Holdfast, guarded: str, visiting: Visiting) -> None:
    secret, _ = app.tokens.create("ada", ["operate"])
    visit = visiting(guarded)
    enter(visit, secret)
    visit.page.wait_for_selector("h1:has-text('Jobs')")
    assert visit.page.url == f"{guarded}/jobs", "the token is in no address"
    (cookie,) = [each for each in visit.page.context.cookies() if each["name"] == "holdfast_session"]
    assert (cookie["httpOnly"], cookie["sameSite"], secret in cookie["value"]) == (True, "Strict", False)
    assert "ada" in visit.page.locator("header").inner_text()
    visit.press("Log out")
    visit.page.wait_for_url("**/login")
    assert httpx.get(f"{guarded}/jobs", cookies={"holdfast_session": cookie["value"]}).status_code == 303


def test_a_wrong_token_is_told_so(guarded: str, visiting: Visiting) -> None:
    visit = visiting(guarded, dark=True)
    enter(visit, "hf_0123456789abcdef_" + "x" * 43)
    assert visit.notice() == "The token is not valid: unknown, expired or revoked."
    visit.page.screenshot(path=SCREENSHOTS / "login-dark.png")
    visit.expect(401)


def test_a_session_ends_with_its_token(app: Holdfast, guarded: str) -> None:
    secret, token = app.tokens.create("ada", ["read"])
    with httpx.Client(base_url=guarded) as browser:
        log_in(browser, secret)
        assert browser.get("/jobs").status_code == 200
        app.tokens.revoke(token.id)
        assert browser.get("/jobs").status_code == 303


def test_who_may_only_read_sees_no_buttons_and_is_refused(app: Holdfast, guarded: str, visiting: Visiting) -> None:
    secret, _ = app.tokens.create("viewer", ["read"])
    (job, *_) = app.find()
    visit = visiting(guarded)
    enter(visit, secret)
    visit.page.wait_for_selector("h1:has-text('Jobs')")
    for path in ("", "jobs", "dead", "queues", "schedules", "workers", "tenants", "trail", f"jobs/{job.id}"):
        page = visit.go(path)
        buttons = [each.inner_text() for each in page.get_by_role("button").all()]
        assert set(buttons) <= {"Theme: automatic", "Log out", "Find", "Show payload"}, path
        assert page.locator(".role").inner_text() == "read only"
        assert page.get_by_role("link", name="Pause").count() == 0, path
    with httpx.Client(base_url=guarded) as browser:
        word = log_in(browser, secret)
        for path, fields in ACTIONS.items():
            given = {name: value.format(id=job.id) for name, value in fields.items()}
            refused = browser.post(path, data={**given, "word": word}, headers=SAME)
            assert refused.status_code == 403, path
        assert browser.get(f"/confirm?verb=cancel&id={job.id}").status_code == 403
        assert browser.get("/hold?what=tenant&which=acme").status_code == 403
    assert (job.refresh().state, any(app.pauses()), app.trail.list()) == ("queued", False, [])


def test_a_tenants_own_token_sees_that_tenant_alone(app: Holdfast, guarded: str, visiting: Visiting) -> None:
    secret, _ = app.tokens.create("acme's", ["operate"], tenant="acme")
    (theirs,) = app.find(tenant="globex")
    visit = visiting(guarded)
    enter(visit, secret)
    visit.page.wait_for_selector("h1:has-text('Jobs')")
    assert visit.page.locator("tbody tr").count() == 1
    for path in ("", "jobs", "jobs?tenant=globex", "dead", "tenants", f"confirm?verb=cancel&id={theirs.id}"):
        assert "globex" not in visit.go(path).content().replace('value="globex"', ""), path
        assert visit.page.get_by_role("link", name="Queues").count() == 0
    with httpx.Client(base_url=guarded) as browser:
        word = log_in(browser, secret)
        absent = browser.get("/jobs/00000000-0000-7000-8000-000000000000")
        foreign = browser.get(f"/jobs/{theirs.id}")
        assert foreign.text.replace(str(theirs.id), "") == absent.text.replace(
            "00000000-0000-7000-8000-000000000000", ""
        )
        for path in ("queues", "schedules", "workers", "trail", "live"):
            assert browser.get(f"/{path}").status_code == 403, path
        done = browser.post("/bulk", data={"verb": "cancel", "ids": str(theirs.id), "word": word}, headers=SAME)
        assert done.status_code == 303
        assert (
            browser.post("/queues", data={"queue": "default", "verb": "pause", "word": word}, headers=SAME).status_code
            == 403
        )
        assert browser.get("/hold?what=tenant&which=acme").status_code == 403
        held = browser.post("/hold", data={**ACTIONS["/hold"], "word": word}, headers=SAME)
        assert held.status_code == 403
    assert not any(app.pauses())
    assert theirs.refresh().state == "queued"


SAME = {"Sec-Fetch-Site": "same-origin"}
ACTIONS = {
    "/bulk": {"verb": "cancel", "ids": "{id}"},
    "/queues": {"queue": "default", "verb": "pause"},
    "/hold": {"what": "tenant", "which": "acme", "verb": "pause"},
    "/schedules": {"name": "nightly", "verb": "run"},
}


def log_in(browser: httpx.Client, secret: str) -> str:
    """Log in, and give the word that forms carry."""
    word = word_of(browser.get("/login").text)
    assert browser.post("/login", data={"token": secret, "word": word}, headers=SAME).status_code == 303
    return word_of(browser.get("/jobs").text)


def word_of(page: str) -> str:
    found = re.search(r'name="word" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


@pytest.fixture
def other_site() -> Iterator[tuple[str, list[str]]]:
    """Serve a page of another site, whose forms are whatever the test puts there."""
    forms: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write("".join(["<!doctype html><title>other</title>", *forms]).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the method's own word
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}", forms
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_another_site_changes_nothing(
    app: Holdfast, visiting: Visiting, other_site: tuple[str, list[str]]
) -> None:
    @app.job
    def greet(name: str) -> str:
        return name

    job = greet.enqueue("Ada")
    elsewhere, forms = other_site
    with serving(app) as address:
        visit = visiting(address)
        word = word_of(visit.go("queues").content())
        for path, fields in ACTIONS.items():
            inputs = "".join(
                f"<input name={name} value={value.format(id=job.id)}>"
                for name, value in {**fields, "word": word}.items()
            )
            forms[:] = [f"<form method=post action={address}{path}>{inputs}<button>go</button></form>"]
            visit.page.goto(elsewhere)
            visit.page.get_by_role("button", name="go").click()
            visit.page.wait_for_url(f"{address}{path}")
            assert "other sites" in visit.page.content() or "another site" in visit.page.content(), path
        visit.expect(403, 404)
        visit.page.close()
    assert (job.refresh().state, any(app.pauses()), app.trail.list()) == ("queued", False, [])


def test_a_form_of_another_session_or_of_none_is_refused(app: Holdfast) -> None:
    app.enqueue_many([])
    with serving(app) as address, httpx.Client(base_url=address) as browser, httpx.Client(base_url=address) as other:
        app.pause("default")
        mine, theirs = (word_of(each.get("/queues").text) for each in (browser, other))
        fields = {"queue": "mail", "verb": "pause"}
        assert browser.post("/queues", data={**fields, "word": theirs}, headers=SAME).status_code == 403
        assert browser.post("/queues", data=fields, headers=SAME).status_code == 403
        assert browser.post("/queues", data={**fields, "word": mine}).status_code == 403, "sent by no page"
        assert browser.post("/queues", data={**fields, "word": mine}, headers=SAME).status_code == 303
        assert browser.get("/queues", params={**fields, "word": mine}).status_code == 200
    assert app.paused() == {"default", "mail"}


def test_a_read_only_server_has_no_buttons(app: Holdfast, visiting: Visiting) -> None:
    app.pause("mail")
    app.pause(tenant="acme")
    app.pause(kind="send")
    with serving(app, read_only=True) as address:
        visit = visiting(address)
        for path in ("queues", "tenants"):
            page = visit.go(path)
            assert page.locator("main button, main form, main a.button").count() == 0
            assert page.get_by_text("paused", exact=True).count() > 0
        visit.page.close()


def test_forms_work_without_scripts(app: Holdfast, visiting: Visiting) -> None:
    app.pause("mail")
    with serving(app) as address:
        visit = visiting(address, java_script_enabled=False)
        visit.go("queues")
        visit.press("Resume mail")
        assert visit.notice() == "The queue 'mail' was resumed."
        visit.page.close()
    assert app.paused() == frozenset()
