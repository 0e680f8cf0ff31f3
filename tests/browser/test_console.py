"""The console as people use it: signing in, looking, changing, with the keyboard, on a telephone,
in the dark, with an empty product, with a server that is gone."""

import re

import pytest
from playwright.sync_api import expect

from service import bucket, slots, window

NOW = "2026-03-10T12:00:00.000Z"
ODD = "<script>alert(1)</script>"
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
    "plans": "/console/plans",
    "plan": "/console/plans/small",
    "edit-plan": "/console/plans/small/edit",
    "capacity": "/console/capacity?active.free=60&active.standard=20&active.pro=9",
}


def limits(day):
    return [
        bucket("requests_per_minute", "requests", 20, 20),
        window("requests_per_day", "requests", "day", day),
        window("tokens_per_month", "total_tokens", "month", 100_000),
        slots("concurrency", 4),
    ]


def sign_in(page, tenant, path="/console", token=None):
    page.goto(f"{tenant.service.url}{path}")
    page.get_by_label("Token or API key").fill(token or tenant.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/sign-in" not in url)


def filled_in(page):
    """Until nothing on the page is still being added up."""
    expect(page.locator(".filling")).to_have_count(0)


@pytest.fixture(scope="module")
def shop(service):
    """A product with users, calls, refusals and changes; tests do not change it."""
    tenant = service.tenant(NOW, "Asia/Tokyo")
    tenant.plan("large", limits(5_000))
    tenant.plan("small", limits(5))
    names = ["mia", "x" * 256, ODD, "مستخدم", "a/b?c"]
    for place, name in enumerate(names):
        tenant.user(name, plan="small", org="acme" if place else None, verified=True)
        for _ in range(2):
            tenant.spend(name, 1_000 * (6 - place), 100, feature="chat")
    tenant.spend("mia", 500, 50, feature="search")
    tenant.hold("mia", 200, 100)
    tenant.hold("mia", 100, 50)
    assert tenant.refusal("mia", 100, 50)["code"] == "daily_quota_exhausted"
    tenant.post("/v1/admin/users/mia/grants", {"limit": "tokens_per_month", "amount": 9_000, "reason": "sorry"})
    return tenant


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (390, "dark")])
def test_every_page_is_sound(new_page, look, shop, width, scheme):
    page = new_page(width=width, color_scheme=scheme)
    page.goto(f"{shop.service.url}/console")
    look(page, f"console-sign-in-{width}-{scheme}")
    sign_in(page, shop)
    for name, path in PAGES.items():
        page.goto(f"{shop.service.url}{path}")
        filled_in(page)
        look(page, f"console-{name}-{width}-{scheme}")


@pytest.mark.parametrize("width", [1280, 390])
def test_an_empty_product_says_what_to_do_next(new_page, look, service, width):
    tenant = service.tenant(NOW)
    page = new_page(width=width)
    sign_in(page, tenant)
    for name in ("overview", "consumers", "users", "user", "why"):
        page.goto(f"{service.url}{PAGES[name]}")
        filled_in(page)
        expect(page.locator(".empty").first).to_be_visible()
        look(page, f"console-empty-{name}-{width}")


def test_a_top_consumer_is_found_and_what_was_refused_is_explained(page, shop):
    sign_in(page, shop)
    page.get_by_role("link", name="Top consumers").first.click()
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("mia")
    first.get_by_role("link", name="mia").click()
    expect(page.get_by_role("heading", name="mia")).to_be_visible()
    expect(page.get_by_text("daily_quota_exhausted").first).to_be_visible()
    page.get_by_role("link", name="Why?").first.click()
    expect(page.get_by_role("table")).to_contain_text("requests_per_day")
    expect(page.get_by_label("Refused at about")).to_have_value(re.compile(r"2026-03-10T21:00"))


def test_names_are_text_on_every_page(page, shop):
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    sign_in(page, shop, "/console/users")
    page.get_by_role("link", name=ODD).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(ODD)
    page.goto(f"{shop.service.url}/console/consumers")
    filled_in(page)
    expect(page.get_by_role("link", name="مستخدم")).to_be_visible()


def test_a_plan_is_changed_and_the_users_gauge_follows_by_itself(new_page, service):
    tenant = service.tenant(NOW)
    tenant.plan("small", limits(5))
    tenant.user("mia", plan="small")
    tenant.spend("mia", 100, 50)
    user, plan = new_page(), new_page()
    sign_in(user, tenant, "/console/users/mia")
    gauge = user.locator("article", has_text="requests_per_day")
    expect(gauge).to_contain_text("4 left of 5")
    sign_in(plan, tenant, "/console/plans/small/edit")
    group = plan.get_by_role("group", name="requests_per_day")
    group.get_by_label("Limit", exact=True).fill("many")
    plan.get_by_label("Reason").fill("more room")
    plan.get_by_role("button", name="Continue", exact=True).click()
    expect(plan.get_by_role("group", name="requests_per_day").get_by_label("Limit", exact=True)).to_have_attribute("aria-invalid", "true")
    plan.faults.forget("400")
    plan.get_by_role("group", name="requests_per_day").get_by_label("Limit", exact=True).fill("50")
    plan.get_by_label("In force").select_option("now")
    plan.get_by_role("button", name="Continue, and try it").click()
    expect(plan.get_by_text("What it would have done")).to_be_visible()
    expect(plan.get_by_role("row", name="requests_per_day")).to_contain_text("50 requests a day")
    plan.get_by_role("button", name="Put it in force").click()
    expect(plan.get_by_text("Done, and in force")).to_be_visible()
    expect(gauge).to_contain_text("49 left of 50")


def test_a_user_is_changed_with_the_keyboard_alone(page, service):
    tenant = service.tenant(NOW)
    tenant.plan("small", limits(5))
    tenant.user("mia", plan="small")
    page.goto(f"{service.url}/console/users/mia")
    expect(page.get_by_label("Token or API key")).to_be_focused()
    page.keyboard.type(tenant.token)
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/users/mia")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Suspend":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/suspend")
    page.get_by_label("Reason").focus()
    page.keyboard.type("card was charged back")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Every check of this user is refused")).to_be_visible()
    assert not tenant.get("/v1/admin/users/mia")["suspended"]
    page.get_by_role("button", name="Suspend the user").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/users/mia?done=saved")
    expect(page.get_by_text("suspended").first).to_be_visible()
    assert tenant.get("/v1/admin/users/mia")["suspended"]


def test_what_does_not_fit_is_seen_before_it_happens(page, service, look):
    sign_in(page, service.tenant(NOW), "/console/capacity")
    for plan, active in (("Free", 60), ("Standard", 20), ("Pro", 9)):
        page.get_by_label(f"Active on {plan}").fill(str(active))
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_role("status").filter(has_text="It does not fit")).to_contain_text("output tokens")
    row = page.get_by_role("region", name="output tokens by plan").get_by_role("row", name="pro")
    expect(row).to_contain_text("2,444")
    # With the largest rate that fits it does.
    page.get_by_text("Try other rates").click()
    limit = page.get_by_role("group", name="pro output_tokens_per_minute")
    limit.get_by_label("At once").fill("2444")
    limit.get_by_label("A minute").fill("2444")
    look(page, "capacity-rates")
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_text("Other rates are tried")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="It does not fit")).to_have_count(0)
    expect(row).to_contain_text("2,444")
    look(page, "capacity-tried")
    limit.get_by_label("A minute").fill("lots")
    page.get_by_role("button", name="Look").click()
    expect(limit.get_by_label("A minute")).to_have_attribute("aria-invalid", "true")
    page.faults.forget("400")


def test_a_pause_of_a_pool_is_told_with_its_end(page, service, look):
    tenant = service.tenant(NOW)
    pool = {"models": ["*"], "limits": [bucket("requests", "requests", 50, 10), bucket("output", "output_tokens", 9_000, 900)]}
    tenant.put("/v1/admin/pools/default", pool | {"reason": "test"})
    tenant.hold("mia", 100, 200)
    tenant.post("/v1/pools/default/feedback", {"status": 429, "headers": {"retry-after": "20"}})
    sign_in(page, tenant)
    filled_in(page)
    story = page.get_by_role("listitem").filter(has_text="pool default")
    expect(story).to_contain_text("paused pool default until")
    full = page.locator(".loads li", has_text="output")
    expect(full).to_contain_text("8,800 left of 9,000, 200 held")
    tenant.set_clock("2026-03-10T12:10:00.000Z")
    page.reload()
    filled_in(page)
    expect(story).to_contain_text("paused pool default, over at")
    look(page, "overview-pause")


def test_a_session_that_is_over_leads_to_the_sign_in_and_back(page, service):
    tenant = service.tenant(NOW)
    tenant.plan("small", limits(5))
    key = tenant.post("/v1/admin/keys", {"kind": "api", "name": "console", "scopes": ["admin:read", "quota"]})
    sign_in(page, tenant, "/console/users/mia", key["secret"])
    expect(page.get_by_text("read only")).to_be_visible()
    expect(page.get_by_role("link", name="Change plan")).to_have_count(0)
    tenant.call("DELETE", f"/v1/admin/keys/{key['kid']}")
    page.get_by_role("link", name="Sign in again").click()
    page.faults.forget("401")
    page.get_by_label("Token or API key").fill(tenant.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/console/users/mia")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()


def test_a_server_that_is_gone_is_told_of_and_comes_back(page, own_service):
    tenant = own_service.tenant(NOW)
    tenant.plan("small", limits(5))
    tenant.user("mia", plan="small")
    sign_in(page, tenant, "/console/users/mia")
    gauge = page.locator("article", has_text="requests_per_day")
    expect(gauge).to_contain_text("5 left of 5")
    own_service.stop()
    expect(page.get_by_text("The server does not answer")).to_be_visible()
    own_service.start()
    tenant.spend("mia", 100, 50)
    expect(gauge).to_contain_text("4 left of 5")
    expect(page.get_by_text("The server does not answer")).to_have_count(0)
    page.faults.forget("Failed to load resource")


def test_pages_are_whole_without_scripts(new_page, shop):
    page = new_page(java_script_enabled=False)
    sign_in(page, shop)
    page.get_by_role("link", name="Show these figures").first.click()
    expect(page.get_by_role("heading", name="Calls, last 24 hours").or_(page.get_by_text("Calls, last 24 hours"))).to_be_visible()
    expect(page.locator(".filling")).to_have_count(0)
    page.goto(f"{shop.service.url}/console/users/mia")
    expect(page.locator("article", has_text="requests_per_day")).to_contain_text("0 left of 5")
