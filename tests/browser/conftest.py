"""What browser tests share: one browser, one service; a page for each test."""

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from product import Product
from service import Service

CHROMIUM = "/usr/bin/chromium"
# Nothing but what the tests ask for goes out.
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
# Only a failure waits so long; other work on the machine may be heavy.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)
# Where screenshots go; without it none are taken.
SHOTS = os.environ.get("SHOTS")


@pytest.fixture(scope="session")
def browser():
    if not Path(CHROMIUM).exists():
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is missing")
        pytest.skip("chromium is not installed")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET + root)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """The service that most tests share, each with tenants of its own."""
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.stop()


@pytest.fixture
def own_service(tmp_path):
    """A service to be stopped."""
    service = Service(tmp_path / "data")
    yield service
    service.stop()


@pytest.fixture
def product(service):
    product = Product(service.url)
    yield product
    product.stop()


class Faults(list):
    """What the browser complained of; a test that expects complaints takes them out."""

    def forget(self, *parts):
        self[:] = [fault for fault in self if not any(part in fault for part in parts)]


@pytest.fixture
def new_page(browser):
    """Opens pages: options are those of a browser context. None may complain on its console."""
    opened = []

    def open_page(width=1280, **options):
        options.setdefault("viewport", {"width": width, "height": 800})
        context = browser.new_context(locale=options.pop("locale", "en-GB"), **options)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.faults = Faults()
        page.on("pageerror", lambda error: page.faults.append(f"error: {error}"))
        page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)
        opened.append((context, page))
        return page

    yield open_page
    faults = [fault for _, page in opened for fault in page.faults]
    for context, _ in opened:
        context.close()
    assert not faults, "\n".join(faults)


@pytest.fixture
def page(new_page):
    return new_page()


@pytest.fixture
def look():
    """Looks at a page as it stands: axe must find nothing serious, nothing may stick out at the
    side; with SHOTS=folder a screenshot is kept."""

    def look_at(page, name, allowed=()):
        if SHOTS:
            page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{name} is {wide[0]} wide in a window of {wide[1]}"
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        serious = [fault for fault in found if fault["impact"] in ("serious", "critical")]
        serious = [fault for fault in serious if fault["id"] not in allowed]
        told = [f"{fault['id']}: {node['html']} ({node['failureSummary']})"
                for fault in serious for node in fault["nodes"]]
        assert not told, "\n".join(told)

    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
    return look_at


def pytest_terminal_summary(terminalreporter):
    """The line that `./test` sums up, in the form that cargo has."""
    count = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    failed = count["failed"] + count["error"]
    terminalreporter.write_line(
        f"test result: {'FAILED' if failed else 'ok'}. {count['passed']} passed; {failed} failed; "
        f"{count['skipped']} ignored; in the browser"
    )
