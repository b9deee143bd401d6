"""The dashboard without a mouse, and for those who listen to it."""

from playwright.sync_api import Page

from holdfast import Holdfast
from tests.browser.conftest import Visiting, serving
from tests.browser.scene import Scene
from tests.browser.test_pages import PAGES


def focus(page: Page) -> str:
    """Name what has the focus."""
    script = (
        "(document.activeElement.ariaLabel || document.activeElement.innerText || document.activeElement.name || '')"
    )
    return str(page.evaluate(script)).strip()


def tab_to(page: Page, name: str, most: int = 60) -> None:
    """Press the tabulator until something of this name has the focus; its focus can be seen."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focus(page) == name:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"nobody sees that {name!r} has the focus"
            return
    raise AssertionError(f"{name!r} is not reached by the keyboard")


def test_a_job_is_found_and_cancelled_by_keyboard_alone(app: Holdfast, visiting: Visiting) -> None:
    @app.job
    def greet(name: str) -> str:
        return name

    job = greet.enqueue("Ada")
    with serving(app) as address:
        visit = visiting(address)
        page = visit.go()
        page.keyboard.press("Tab")
        assert focus(page) == "Skip to the page"
        tab_to(page, "Jobs")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        tab_to(page, f"greet …{str(job.id)[-8:]}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{job.id}")
        tab_to(page, "Cancel…")
        page.keyboard.press("Enter")
        page.wait_for_url("**/confirm*")
        tab_to(page, "Cancel 1 job")
        page.keyboard.press("Enter")
        page.wait_for_selector("main .notice")
        assert focus(page) == "1 job was cancelled, or asked to stop.", "the notice is read out"
        assert job.refresh().state == "cancelled"
        page.close()


def test_every_control_has_a_name_and_every_table_its_headers(archive: Scene, address: str, visiting: Visiting) -> None:
    visit = visiting(address)
    nameless = """() => Array.from(document.querySelectorAll(
            "a, button, input:not([type=hidden]), select, svg[role=img], figure"))
        .filter((each) => !(each.innerText || "").trim() && !each.ariaLabel && !each.labels?.length
            && !each.getAttribute("aria-labelledby"))
        .map((each) => each.outerHTML.slice(0, 120))"""
    bare = """() => Array.from(document.querySelectorAll("table"))
        .filter((each) => !each.caption
            || each.querySelectorAll("thead th[scope=col]").length !== each.rows[1].cells.length)
        .length"""
    for name, path in PAGES.items():
        page = visit.go(path.format(**archive.jobs))
        assert page.evaluate(nameless) == [], name
        assert page.evaluate(bare) == 0, name
        ids = page.evaluate("Array.from(document.querySelectorAll('[id]')).map((each) => each.id)")
        assert len(ids) == len(set(ids)), name
    visit.expect(404)
    assert visit.go().locator("[aria-live=polite]").count() == 1
    assert visit.page.get_by_role("navigation", name="Pages").count() == 1
    assert visit.page.get_by_role("main").count() == 1


def test_colours_stand_out_from_their_ground(archive: Scene, address: str, visiting: Visiting) -> None:
    """Text of every state and of every kind has a contrast of 4.5 or more, in light and in dark."""
    script = """() => {
        const light = (colour) => {
            const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map((part) => part / 255)
                .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = (each) => {
            for (; each; each = each.parentElement) {
                const colour = getComputedStyle(each).backgroundColor;
                if (colour.startsWith("rgb(")) return colour;
            }
            return "rgb(255, 255, 255)";
        };
        return Array.from(document.querySelectorAll("main *, header *"))
            .filter((each) => Array.from(each.childNodes).some((node) => node.nodeType === 3 && node.data.trim()))
            .filter((each) => !each.closest("svg") && !each.closest(".unseen") && each.offsetWidth)
            .map((each) => {
                const [one, other] = [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => b - a);
                return [(one + 0.05) / (other + 0.05), each.innerText.slice(0, 40)];
            })
            .filter(([contrast]) => contrast < 4.5);
    }"""
    for dark in (False, True):
        visit = visiting(address, dark=dark)
        for path in ("", "jobs", "dead", "queues", "workers", f"jobs/{archive.jobs['workflow']}"):
            assert visit.go(path).evaluate(script) == [], (path, dark)
