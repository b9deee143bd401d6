"""Every page as it is seen: in light and dark, on a desk and on a phone."""

import pytest

from tests.browser.conftest import SCREENSHOTS, Visiting
from tests.browser.scene import Scene

PAGES = {
    "overview": "",
    "jobs": "jobs",
    "jobs-dead": "jobs?state=dead",
    "jobs-none": "jobs?kind=nothing",
    "confirm": "confirm?verb=redrive&state=dead",
    "hold": "hold?what=tenant&which=acme",
    "dead": "dead",
    "queues": "queues",
    "schedules": "schedules",
    "workers": "workers",
    "tenants": "tenants",
    "trail": "trail",
    "job-dead": "jobs/{dead}",
    "job-retrying": "jobs/{retrying}",
    "job-succeeded": "jobs/{succeeded}",
    "job-workflow": "jobs/{workflow}",
    "job-running": "jobs/{running}",
    "job-waiting": "jobs/{waiting}",
    "not-there": "jobs/00000000-0000-7000-8000-000000000000",
}
LOOKS = {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_whole_in_every_look(archive: Scene, address: str, visiting: Visiting, look: str) -> None:
    visit = visiting(address, **LOOKS[look])
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for name, path in PAGES.items():
        page = visit.go(path.format(**archive.jobs))
        assert page.locator("h1").count() == 1, name
        assert page.locator("main#main").count() == 1, name
        width, view = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width <= view, f"{name} is {width} wide, and the window {view}"
        if name == "overview":
            page.wait_for_selector("figure polyline", state="attached")
        page.screenshot(path=SCREENSHOTS / f"{name}-{look}.png", full_page=True)
    visit.expect(404)
