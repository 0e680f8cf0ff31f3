"""Every page under every condition: narrow and wide, light and dark, nothing there yet, the keyboard
alone, a session that is over, a server that is gone and back."""

import pytest
from playwright.sync_api import Error, expect
from test_console import NOW, filled_in, limits, sign_in

PAGES = {
    "overview": "/console",
    "consumers": "/console/consumers",
    "users": "/console/users",
    "user": "/console/users/mia",
    "why": "/console/users/mia/why",
    "change-plan": "/console/users/mia/plan",
    "override": "/console/users/mia/override",
    "grant": "/console/users/mia/grant",
    "suspend": "/console/users/mia/suspend",
    "erase": "/console/users/mia/erase",
    "plans": "/console/plans",
    "plan": "/console/plans/small",
    "edit-plan": "/console/plans/small/edit",
    "new-plan": "/console/new-plan?id=fresh",
    "restore": "/console/plans/small/versions/1/restore",
    "capacity": "/console/capacity",
    "doubts": "/console/doubts",
    "resolve": "/console/doubts/all/resolve",
    "make-goods": "/console/make-goods",
    "make-good": "/console/make-goods/new",
    "webhooks": "/console/webhooks",
    "duplicates": "/console/duplicates",
    "audit": "/console/audit",
}
# Forms, with a field and what somebody has written into it.
FORMS = {
    "change-plan": "Reason", "override": "Reason", "grant": "Amount", "suspend": "Reason", "erase": "Reason",
    "edit-plan": "Reason", "restore": "Reason", "resolve": "Reason", "make-good": "Name",
}
CONDITIONS = {
    "wide": {"width": 1280},
    "wide-dark": {"width": 1280, "color_scheme": "dark"},
    "narrow-dark": {"width": 390, "color_scheme": "dark"},
}


def make(service):
    """A product with a little of everything."""
    tenant = service.tenant(NOW, "Asia/Tokyo")
    tenant.plan("small", limits(5))
    tenant.plan("small", limits(6))
    for name in ("mia", "tom"):
        tenant.user(name, plan="small", signals={"device": "d-1"})
        tenant.spend(name, 1_000, 100, feature="chat")
        tenant.hold(name, 200, 100, lease_seconds=60)
    tenant.put("/v1/admin/pools/default", {
        "models": ["*"], "reason": "test",
        "limits": [{"name": "requests", "kind": "bucket", "meter": "requests", "capacity": 50, "refill_per_minute": 10}],
    })
    tenant.post("/v1/pools/default/feedback", {"status": 429, "headers": {"retry-after": "20"}})
    tenant.post("/v1/admin/webhooks", {"url": "http://127.0.0.1:9/hook", "events": ["plan.changed"], "reason": "test"})
    tenant.set_clock("2026-03-10T12:20:00.000Z")
    return tenant


COOKIES = {}


def enter(page, tenant, path):
    """Opens a page as somebody who has signed in before."""
    if tenant.name not in COOKIES:
        sign_in(page, tenant, path)
        COOKIES[tenant.name] = page.context.cookies()
    else:
        page.context.add_cookies(COOKIES[tenant.name])
        page.goto(f"{tenant.service.url}{path}")
    filled_in(page)


@pytest.fixture(scope="module")
def shop(service):
    return make(service)


@pytest.fixture(scope="module")
def empty(service):
    return service.tenant(NOW)


@pytest.mark.parametrize("page_name", PAGES)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_page(new_page, look, shop, condition, page_name):
    page = new_page(**CONDITIONS[condition])
    enter(page, shop, PAGES[page_name])
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    look(page, f"{page_name}-{condition}")


@pytest.mark.parametrize("page_name", PAGES)
@pytest.mark.parametrize("condition", ["wide", "narrow-dark"])
def test_page_of_a_product_without_anything(new_page, look, empty, condition, page_name):
    page = new_page(**CONDITIONS[condition])
    enter(page, empty, PAGES[page_name].replace("/plans/small", "/plans/free"))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    look(page, f"empty-{page_name}-{condition}")


@pytest.mark.parametrize("page_name", PAGES)
def test_all_of_a_page_is_reached_with_the_keyboard(page, shop, page_name):
    enter(page, shop, PAGES[page_name])
    page.evaluate("document.activeElement.blur()")
    wanted = page.evaluate("""() => {
        const all = document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary");
        const seen = [...all].filter(node => node.checkVisibility() && !node.disabled);
        seen.forEach((node, place) => node.dataset.place = place);
        return seen.length;
    }""")
    reached, steps = set(), 0
    while len(reached) < wanted and steps < wanted * 2 + 40:
        page.keyboard.press("Tab")
        steps += 1
        place, outlined = page.evaluate("""() => {
            const node = document.activeElement, style = getComputedStyle(node);
            const outlined = style.outlineStyle !== "none" || style.boxShadow !== "none";
            return [node.dataset.place, outlined || node === document.body];
        }""")
        assert outlined, f"the focus is not seen: {page.evaluate('document.activeElement.outerHTML')}"
        reached.add(place)
        reached.discard(None)
    assert len(reached) == wanted, f"{wanted - len(reached)} of {wanted} are out of reach"


@pytest.mark.parametrize("page_name", [name for name in PAGES if name != "new-plan"])
def test_a_session_that_is_over_leads_back_to_the_page(page, shop, page_name):
    key = shop.post("/v1/admin/keys", {
        "kind": "api", "name": "console", "scopes": ["admin:read", "admin:write", "quota"]})
    sign_in(page, shop, PAGES[page_name], key["secret"])
    filled_in(page)
    field = FORMS.get(page_name)
    if field:
        fill_all(page, field)
    shop.call("DELETE", f"/v1/admin/keys/{key['kid']}")
    if field:
        page.locator("main form[method=post] button").first.click()
        expect(page.get_by_text("Nothing that you sent was done.")).to_be_visible()
    else:
        page.reload()
    page.faults.forget("401")
    page.get_by_label("Token or API key").fill(shop.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**{PAGES[page_name].split('?')[0]}*")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def fill_all(page, field):
    """A form in which nothing is missing; gives the field that is looked at."""
    for label in ("Amount", "Name", "Limit", "Reason"):
        of_form = page.locator("main form[method=post]").get_by_label(label, exact=True)
        for place in range(of_form.count()):
            node = of_form.nth(place)
            if node.evaluate("node => node.tagName") == "INPUT" and not node.input_value():
                node.fill("1")
    wanted = page.locator("main form[method=post]").get_by_label(field, exact=True).first
    wanted.fill("4711")
    return wanted


@pytest.fixture
def gone_and_back(own_service):
    return own_service, make(own_service)


def test_pages_come_back_with_the_server(page, gone_and_back):
    service, tenant = gone_and_back
    sign_in(page, tenant)
    names = list(PAGES)
    for name in names:
        page.goto(f"{service.url}{PAGES[name]}")
        filled_in(page)
        field = FORMS.get(name) and fill_all(page, FORMS[name])
        live = page.locator("[data-every]").count()
        if not field and not live:
            continue
        service.stop()
        if field:
            # What was written is still there, and is sent once the server is back.
            page.locator("main form[method=post] button").first.click()
            expect(page.get_by_text("nothing was sent. What you wrote is still here")).to_be_visible()
            expect(field).to_have_value("4711")
        else:
            expect(page.get_by_text("The server does not answer")).to_be_visible()
        service.start()
        page.faults.forget("Failed to load resource")
        if field:
            with page.expect_navigation():
                page.locator("main form[method=post] button").first.click()
            expect(page.get_by_text("nothing was sent")).to_have_count(0)
            page.faults.forget("400")
        else:
            expect(page.get_by_text("The server does not answer")).to_have_count(0)


def test_a_list_that_is_asked_for_while_the_server_is_gone_is_there_when_it_is_back(page, gone_and_back):
    service, tenant = gone_and_back
    sign_in(page, tenant, "/console/audit")
    for name in ("doubts", "make-goods", "audit", "webhooks", "duplicates", "plans"):
        page.goto(f"{service.url}{PAGES[name]}")
        rows = page.get_by_role("row").count()
        service.stop()
        # In a tab of its own: the browser's page about a failure may interrupt what the same tab is
        # told to open next, over and over.
        tab = page.context.new_page()
        with pytest.raises(Error, match="ERR_CONNECTION_REFUSED"):
            tab.goto(f"{service.url}{PAGES[name]}")
        tab.close()
        service.start()
        page.goto(f"{service.url}{PAGES[name]}")
        expect(page.get_by_role("row")).to_have_count(rows)
    page.faults.forget("Failed to load resource")
