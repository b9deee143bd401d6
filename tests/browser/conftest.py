"""A real browser before a real server; what it complains of fails the test.

Every test of a page goes through `Visit`: a dialog that nobody expects, an error on the console, a script that fails
and anything that the content security policy had to stop are found when the visit ends.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, ViewportSize, sync_playwright

from holdfast import Holdfast
from holdfast.server import serve
from tests.browser import scene

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = Path(__file__).parents[2] / ".artifacts" / "screenshots"
WIDE, PHONE = ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)
LONG = 20.0
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_TRAP = """document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));"""


class Visit:
    """One page of the browser, and what went wrong on it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.trouble: list[str] = []
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.trouble.append(f"script: {error}"))
        page.on("console", lambda said: self.trouble.append(said.text) if said.type == "error" else None)

    def _dialog(self, dialog: Any) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path: str = "") -> Page:
        """Open a page and wait until it is there."""
        self.page.goto(f"{self.address}/{path}", wait_until="domcontentloaded")
        return self.page

    def press(self, name: str, *, exact: bool = True) -> Page:
        """Press a button, and wait for the page that comes of it."""
        self.page.get_by_role("button", name=name, exact=exact).first.click()
        return self.page

    def expect(self, *statuses: int) -> None:
        """Say that these statuses were asked for: the browser complains of them, and it is no trouble."""
        told = tuple(f"with a status of {status} " for status in statuses)
        self.trouble = [each for each in self.trouble if not any(status in each for status in told)]

    def notice(self) -> str:
        """Give the sentence that says what was done."""
        self.page.wait_for_selector("main .notice")
        return self.page.locator("main .notice").inner_text()


Visiting = Callable[..., Visit]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Start the browser once."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        except Error as error:
            pytest.skip(f"the browser does not start: {error.message.splitlines()[0]}")
        with closing(browser):
            yield browser


@pytest.fixture
def visiting(chromium: Browser) -> Iterator[Visiting]:
    """Give a way to open a fresh browser at an address; whatever it complained of fails the test."""
    opened: list[tuple[Any, Visit]] = []

    def visit(address: str, *, dark: bool = False, phone: bool = False, **options: Any) -> Visit:
        context = chromium.new_context(
            color_scheme="dark" if dark else "light", viewport=PHONE if phone else WIDE, **options
        )
        context.set_default_timeout(LONG * 1000)
        context.add_init_script(_TRAP)
        made = Visit(context.new_page(), address)
        opened.append((context, made))
        return made

    yield visit
    for context, _ in opened:
        context.close()
    assert [trouble for _, made in opened for trouble in made.trouble] == []


@contextmanager
def serving(app: Holdfast, **options: Any) -> Iterator[str]:
    """Serve an application's jobs with its dashboard; gives the address."""
    served = serve(app, port=0, **options)
    try:
        yield served.address
    finally:
        served.stop()
        assert served.join(LONG), "the server did not stop"


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scene.Scene]:
    """Fill a store with all that a page can show, and keep a worker busy; for tests that change nothing."""
    with scene.opened(f"sqlite:///{tmp_path_factory.mktemp('archive')}/jobs.db") as made:
        yield made


@pytest.fixture(scope="session")
def address(archive: scene.Scene) -> Iterator[str]:
    """Serve the archive."""
    with serving(archive.app) as found:
        yield found


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """Give a test a store of its own."""
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as made:
        yield made
