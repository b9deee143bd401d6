"""Text that means harm: every field that a page shows holds markup, and none of it ever becomes a part of the page.

The trap is the visit itself: a dialog, an error of a script, or anything the content security policy had to stop
fails the test, and so does an element that came out of the text.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from holdfast import Context, Holdfast, Permanent
from holdfast.domain.job import State
from holdfast.domain.moments import HOUR
from holdfast.port.store import Claim
from tests.browser.conftest import Visiting, serving
from tests.servers import until
from tests.workers import running

ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'\"><svg/onload=alert(1)>",
    "</title></pre></td></textarea><iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "javascript:alert(1)//",
    "{{7*7}}{% raw %}${7*7}<%= 7*7 %>",
    '" autofocus onfocus=alert(1) hx-get="/jobs" hx-trigger="load" x="',
    '<a href="javascript:alert(1)" data-hx-on:click="alert(1)" hx-on:load="alert(1)">x</a>',
    "<style>*{display:none}</style><base href=//example.org><meta http-equiv=refresh content=0>",
    "-->]]><math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
]
PAGES = ["", "jobs", "dead", "queues", "schedules", "workers", "tenants", "trail"]
_FOREIGN = ", ".join(
    f"main {each}"
    for each in ("script", "img", "iframe", "style", "base", "math", "textarea", "[onerror]", "[onload]", "[onfocus]")
)
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def short(attack: str) -> str:
    """Make it fit where less is allowed."""
    return attack.replace("#", "").replace("@", "")[:190]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """Put every attack into every field there is."""
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db", upkeep=0.2)) as made:
        for attack in ATTACKS:
            plant(made, attack)
        with running(made, worker_id=short(ATTACKS[1])):
            until(lambda: _settled(made), "half of them died, and half of them wait")
        for attack in ATTACKS:
            govern(made, short(attack))
        yield made


def _settled(app: Holdfast) -> bool:
    counts = app.counts()
    return counts[State.DEAD] == counts[State.RETRYING] == len(ATTACKS)


def plant(app: Holdfast, attack: str) -> None:
    """Make a job that dies, one that waits, a schedule, an account and a line of the trail."""
    text = short(attack)

    @app.job(name=text, queue=text)
    async def attacked(payload: str, ctx: Context) -> str:
        if payload == "die":
            raise Permanent(attack, code=text[:60])
        ctx.progress(0.5, attack)
        await ctx.step(text, lambda: attack)
        await ctx.wait_for(text)
        return attack

    options = {"tenant": text, "user": text, "trace_id": text}
    app.enqueue(text, {"payload": "die"}, key=f"{text[:80]}1", **options)
    app.enqueue(text, {"payload": attack}, key=f"{text[:80]}2", **options)
    app.schedules.add(text, app.prepare(text, {"payload": attack}), cron="0 3 * * *")
    app.grant(text, 100)
    app.trail.record(attack, attack, attack, attack)


def govern(app: Holdfast, text: str) -> None:
    """Pause all that goes by a name, and have limits that are used by it."""
    app.limits.order(text, order="fair", weights={text: 3})
    app.limits.set(text, concurrency=1, per="tenant")
    app.enqueue(text, {"payload": text}, tenant=text)
    assert app.store.claim(Claim(text, "l", HOUR, 1, {text: 1}))
    for what in ({"queue": text}, {"tenant": text}, {"kind": text}):
        app.pause(**what)


def test_no_text_becomes_a_part_of_a_page(app: Holdfast, visiting: Visiting) -> None:
    jobs = app.find()
    held = [f"hold?{urlencode({'what': 'tenant', 'which': short(attack)})}" for attack in ATTACKS]
    with running(app, worker_id=short(ATTACKS[0])), serving(app) as address:
        until(app.store.workers, "a worker reports itself")
        visit = visiting(address)
        for path in [*PAGES, *(f"jobs/{job.id}" for job in jobs), "confirm?verb=cancel&state=retrying", *held]:
            page = visit.go(path)
            assert page.locator(_FOREIGN).count() == 0, path
            assert page.locator("h1").count() == 1, path
            assert page.evaluate(_OVERFLOW) <= 0, path
            if path.startswith("jobs/") and page.locator(".state-retrying").count():
                page.get_by_role("button", name="Show payload").click()
                page.wait_for_selector("#contents pre")
                assert page.locator(_FOREIGN).count() == 0, path
        visit.page.close()


def test_no_text_of_an_address_becomes_a_part_of_a_page(app: Holdfast, visiting: Visiting) -> None:
    with serving(app) as address:
        visit = visiting(address)
        for attack in ATTACKS:
            parts = dict.fromkeys(("kind", "queue", "tenant", "error_code", "key"), attack)
            page = visit.go(f"jobs?{urlencode(parts)}")
            assert page.get_by_label("Kind").input_value() == attack
            assert page.locator(_FOREIGN).count() == 0
            assert page.evaluate(_OVERFLOW) <= 0
        visit.page.close()
