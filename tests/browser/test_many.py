"""The console of a product with a hundred thousand users."""

import re

import pytest
from many import fill
from playwright.sync_api import expect
from service import Service
from test_console import filled_in, sign_in

USERS = 100_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("crowd"))
    tenant = service.tenant()
    fill(service, tenant, USERS)
    yield tenant
    service.stop()


@pytest.fixture
def admin(crowd, new_page):
    """Somebody who is signed in, and whom no request has failed."""
    failed = []

    def open_page(path, **options):
        page = new_page(**options)
        page.on("requestfailed", lambda request: failed.append(f"{request.url}: {request.failure}"))
        page.on("response", lambda answer: failed.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None)
        sign_in(page, crowd, path)
        return page

    yield open_page
    # Whoever leaves a page does not wait for its parts.
    assert not [told for told in failed if "ERR_ABORTED" not in told], failed


@pytest.mark.parametrize("width", [1280, 390])
def test_the_overview_is_filled_in(admin, look, width):
    page = admin("/console", width=width)
    filled_in(page)
    expect(page.get_by_role("link", name=re.compile(r"^user_\d{7}$")).first).to_be_visible()
    expect(page.get_by_text("The server does not answer")).to_have_count(0)
    look(page, f"crowd-overview-{width}")


def test_the_top_consumers_are_turned_page_by_page(admin, look):
    page = admin("/console/consumers")
    filled_in(page)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(page.get_by_role("table")).to_contain_text(re.compile(r"100\sk"))
    first = rows.first.get_by_role("link").inner_text()
    look(page, "crowd-consumers")
    page.get_by_role("link", name="Next page").click()
    filled_in(page)
    expect(rows.first.locator("td").first).to_have_text("51")
    page.get_by_role("link", name="First page").click()
    filled_in(page)
    expect(rows.first).to_contain_text(first)


@pytest.mark.parametrize("width", [1280, 390])
def test_users_are_found_by_how_their_ids_begin_and_by_what_is_in_them(admin, look, width):
    page = admin("/console/users", width=width)
    users = page.get_by_role("link", name=re.compile(r"^user_\d{7}$"))
    expect(users).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(users.first).to_have_text("user_0000050")
    page.get_by_label("Id begins with").fill("user_00999")
    page.get_by_role("button", name="Search").click()
    expect(users.first).to_have_text("user_0099900")
    look(page, f"crowd-users-{width}")
    page.get_by_role("link", name="Next page").click()
    expect(users.first).to_have_text("user_0099950")
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    # Far behind the ids that are looked at for one page.
    page.get_by_label("Id begins with").fill("99999")
    page.get_by_label("anywhere in the id").check()
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("None of the ids that were looked at so far fits.")).to_be_visible()
    page.get_by_role("link", name="Look further").click()
    expect(users).to_have_text(["user_0099999"])
    expect(page.get_by_label("anywhere in the id")).to_be_checked()
    users.first.click()
    expect(page.get_by_role("heading", level=1, name="user_0099999")).to_be_visible()
    expect(page.locator("article.gauge").first).to_be_visible()


@pytest.mark.parametrize("path", [
    "/console/plans/free", "/console/capacity", "/console/doubts", "/console/make-goods", "/console/duplicates",
    "/console/audit", "/console/webhooks", "/console/consumers?group=plan", "/console/consumers?group=feature",
])
def test_every_page_is_there(admin, look, path):
    page = admin(path)
    filled_in(page)
    expect(page.locator("main .fault")).to_have_count(0)
    look(page, "crowd-" + re.sub(r"\W+", "-", path[9:]))
