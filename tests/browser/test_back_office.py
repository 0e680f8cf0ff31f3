"""The console's pages of holds in doubt, make-goods, webhooks, duplicates and the audit."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect
from service import slots, window

NOW = "2026-03-10T12:00:00.000Z"
LATER = "2026-03-10T13:00:00.000Z"
ODD = "<script>alert(1)</script>"
RIGHT_TO_LEFT = "مستخدم ١"


@pytest.fixture
def tenant(service):
    tenant = service.tenant(now=NOW)
    tenant.plan("free", [window("tokens_per_month", "total_tokens", "month", 200_000), slots("concurrency", 9)])
    return tenant


@pytest.fixture
def sign_in(service, tenant, new_page):
    """Opens a page of the console as its admin."""

    def open_page(path, **options):
        page = new_page(**options)
        page.goto(f"{service.url}{path}")
        page.get_by_label("token").fill(tenant.token)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{path}")
        return page

    return open_page


def doubts(tenant, users):
    for user in users:
        tenant.spend(user, 1_000, 300, feature="chat", model="sonnet")
        tenant.hold(user, 1_200, 512, feature="chat", model="sonnet", lease_seconds=60, request_id=f"r-{user}"[:99])
    tenant.set_clock(LATER)


def test_a_hold_in_doubt_is_found_looked_at_and_resolved_by_keyboard(tenant, sign_in, look):
    doubts(tenant, ["mia", ODD, RIGHT_TO_LEFT, "x" * 256])
    page = sign_in("/console/doubts")
    expect(page.get_by_role("row")).to_have_count(5)
    look(page, "doubts")
    page.get_by_label("User").fill("mia")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="What is known of").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The caller reported no progress.")).to_be_visible()
    expect(page.get_by_text("4 were settled in the last days")).to_be_visible()
    look(page, "doubt")
    page.get_by_role("link", name="Resolve it").focus()
    page.keyboard.press("Enter")
    page.get_by_label("How it ends").select_option("settle")
    page.get_by_label("Input tokens").fill("1200")
    page.get_by_label("Output tokens").fill("77")
    page.get_by_label("Reason").fill("the vendor's bill")
    page.keyboard.press("Enter")
    expect(page.get_by_text("77 charged")).to_be_visible()
    look(page, "doubt-confirm")
    page.get_by_role("button", name="Resolve it").press("Enter")
    expect(page.get_by_role("status").filter(has_text="Resolved.")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(4)
    used = tenant.get("/v1/users/mia/quota")["limits"][0]["used"]
    assert used == 1_300 + 1_277


def test_all_holds_in_doubt_are_resolved_at_once(tenant, sign_in, look):
    doubts(tenant, ["mia", "tom"])
    page = sign_in("/console/doubts", width=390, color_scheme="dark")
    look(page, "doubts-dark-390")
    page.get_by_role("link", name="Resolve all that fit").click()
    page.get_by_label("How they end").select_option("release")
    page.get_by_label("Reason").fill("the vendor was down")
    look(page, "resolve-all-dark-390")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("2 holds: 2,400 input and 1,024 output tokens come back.")).to_be_visible()
    page.get_by_role("button", name="Resolve them").click()
    expect(page.get_by_text("Nothing is in doubt that fits.")).to_be_visible()


def test_it_is_made_good_after_a_look_and_taken_back(tenant, sign_in, look):
    for user in ("mia", "tom", ODD):
        tenant.user(user, plan="free")
    page = sign_in("/console/make-goods")
    expect(page.get_by_text("Nothing was made good yet.")).to_be_visible()
    page.get_by_role("link", name="Make good", exact=True).click()
    page.get_by_label("Name").fill("outage-1")
    page.get_by_label("Limit").fill("tokens_per_month")
    page.get_by_label("Reason").fill("the outage of Monday")
    look(page, "make-good-form")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("Amount is required.", exact=True)).to_be_visible()
    page.faults.forget("400 (Bad Request)")
    page.get_by_label("Amount").fill("50000")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("3 of them get it, 150,000 in all; 0 are left out.")).to_be_visible()
    look(page, "make-good-confirm")
    page.get_by_role("button", name="Give it").click()
    expect(page.get_by_role("row").filter(has_text="outage-1")).to_contain_text("done")
    look(page, "make-goods")
    page.get_by_role("link", name="Take back outage-1").click()
    page.get_by_label("Reason").fill("twice")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Take it back").click()
    expect(page.get_by_role("row").filter(has_text="outage-1")).to_contain_text("taken back")


def test_the_audit_is_searched_and_shows_before_and_after(tenant, sign_in, look):
    tenant.put("/v1/admin/users/mia", {"plan": "free", "reason": ODD})
    page = sign_in("/console/audit")
    page.get_by_label("What was changed").fill("mia")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("row").last).to_contain_text(ODD)
    page.get_by_text("Before and after").click()
    expect(page.get_by_label("After", exact=True)).to_contain_text('"plan"')
    look(page, "audit")
    page.set_viewport_size({"width": 390, "height": 800})
    look(page, "audit-390")


def test_users_who_share_a_device_are_seen(tenant, sign_in, look):
    for user in ("mia", ODD, RIGHT_TO_LEFT):
        tenant.user(user, plan="free", signals={"device": "d-1", "address": "192.0.2.7"})
        tenant.spend(user, 1_000, 500)
    page = sign_in("/console/duplicates")
    expect(page.get_by_role("row").last).to_contain_text("d-1")
    expect(page.get_by_role("row").last).to_contain_text("4,500")
    look(page, "duplicates")
    page.get_by_role("link", name="Address").click()
    expect(page.get_by_role("row").last).to_contain_text("192.0.2.7")
    page.get_by_role("link", name="mia").click()
    page.wait_for_url("**/console/users/mia")


@pytest.fixture
def receiver():
    """Somebody who wants to be told and is not there any more."""

    class Gone(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gone)
    server.status = 410
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_message_that_was_put_aside_is_sent_again(tenant, sign_in, look, receiver):
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    webhook = tenant.post("/v1/admin/webhooks", {"url": url, "events": ["plan.changed"], "reason": "test"})
    page = sign_in("/console/webhooks")
    look(page, "webhooks")
    page.get_by_role("link", name=url, exact=True).click()
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_role("row").filter(has_text="webhook.test")).to_be_visible()

    def put_aside():
        page.get_by_role("link", name="Put aside").click()
        return page.get_by_role("row").filter(has_text="webhook.test").count() == 1

    while not put_aside():
        pass
    look(page, "webhook")
    receiver.status = 204
    tenant.put(f"/v1/admin/webhooks/{webhook['id']}", {"enabled": True, "reason": "test"})
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("It is on its way again.")).to_be_visible()
    page.get_by_role("link", name="Delivered").click()
    while page.get_by_role("row").filter(has_text="webhook.test").count() == 0:
        page.reload()


def test_whoever_may_only_read_is_shown_no_way_to_change(tenant, service, new_page):
    doubts(tenant, ["mia"])
    page = new_page()
    page.goto(f"{service.url}/console/doubts")
    page.get_by_label("token").fill(tenant.mint("--scope", "admin:read"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("link", name="Resolve all that fit")).to_have_count(0)
    page.goto(f"{service.url}/console/make-goods")
    expect(page.get_by_role("link", name="Make good", exact=True)).to_have_count(0)
