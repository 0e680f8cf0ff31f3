"""The quota element on a product's page: another origin, under a strict policy."""

import gzip
import re
import urllib.request
from datetime import datetime, timedelta, timezone

import element_page
import pytest
from playwright.sync_api import expect
from service import bucket, slots, window

MONTH = window("tokens_per_month", "total_tokens", "month", 200_000)
DAY = window("requests_per_day", "requests", "day", 30)


@pytest.fixture
def tenant(service, product):
    tenant = service.tenant()
    tenant.settings(cors_origins=[product.origin])
    return tenant


@pytest.fixture
def show(tenant, service, product, new_page):
    """Opens the product's page with the element on it, for one user."""

    def open_page(user="mia", attributes="", lang="en", **options):
        page = new_page(**options)
        element_page.put(product, service.url, lambda: tenant.user_token(user), attributes, lang)
        page.goto(product.origin)
        return page

    return open_page


def element(page):
    return page.locator("apportion-quota")


def part(page, name):
    return element(page).locator(f"[part~={name}]")


def limit(page, label):
    return part(page, "limit").filter(has_text=label)


def in_state(page, state):
    expect(element(page)).to_have_attribute("state", state)


def test_a_call_is_seen_as_it_begins_and_as_it_ends(tenant, show, look):
    tenant.plan("free", [MONTH, slots("concurrency", 2)])
    page = show()
    month = limit(page, "Tokens this month")
    expect(month).to_contain_text("200,000 left")
    meter = month.get_by_role("meter", name="Tokens this month")
    expect(meter).to_have_attribute("aria-valuenow", "0")
    hold = tenant.hold("mia", 30_000, 10_000, feature="chat", model="sonnet")
    expect(month).to_contain_text("160,000 left")
    expect(month).to_contain_text("40,000 held by running calls")
    expect(meter).to_have_attribute("aria-valuenow", "20")
    expect(part(page, "running")).to_contain_text("1 running now")
    expect(part(page, "running")).to_contain_text("chat, sonnet")
    look(page, "widget-running")
    tenant.settle(hold, 30_000, 2_000)
    expect(month).to_contain_text("168,000 left")
    expect(part(page, "running")).to_be_hidden()
    expect(month).to_contain_text("About 5 more messages at your usual size")


def test_a_change_of_plan_is_seen_at_once(tenant, show):
    tenant.plan("pro", [window("tokens_per_month", "total_tokens", "month", 15_000_000)])
    tenant.plan("free", [MONTH])
    page = show()
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    expect(part(page, "plan")).to_have_text("free plan")
    tenant.user("mia", plan="pro")
    expect(limit(page, "Tokens this month")).to_contain_text("15M left")
    expect(part(page, "plan")).to_have_text("pro plan")
    page.evaluate("document.querySelector('apportion-quota').labels = {pro: 'Professional'}")
    expect(part(page, "plan")).to_have_text("Professional")


def test_what_used_it_is_shown_by_feature_or_by_model(tenant, show, look):
    tenant.plan("free", [MONTH])
    tenant.spend("mia", 900, 100, feature="chat", model="sonnet")
    tenant.spend("mia", 2_000, 1_000, feature="draw", model="sonnet")
    tenant.spend("mia", 500, 0)
    page = show()
    page.get_by_text("What used it").click()
    rows = part(page, "use").get_by_role("listitem")
    expect(rows).to_have_text(["draw3,000", "chat1,000", "Other500"])
    look(page, "widget-use")
    # At once, whether anything happens or not.
    element(page).evaluate("e => e.setAttribute('by', 'model')")
    expect(rows).to_have_text(["sonnet4,000", "Other500"])
    tenant.spend("mia", 1, 0)
    expect(rows).to_have_text(["sonnet4,000", "Other501"])
    element(page).evaluate("e => e.setAttribute('by', 'none')")
    expect(part(page, "use")).to_be_hidden()


def test_a_quota_that_is_used_up_says_when_it_returns(tenant, show, look):
    tenant.plan("free", [window("requests_per_day", "requests", "day", 2), MONTH])
    tenant.spend("mia", 10, 10)
    page = show()
    expect(limit(page, "Requests today")).to_contain_text("1 left")
    expect(part(page, "notice")).to_be_hidden()
    tenant.spend("mia", 10, 10)
    in_state(page, "exhausted")
    expect(part(page, "notice")).to_contain_text("Requests today: used up Back ")
    expect(limit(page, "Requests today").get_by_role("meter")).to_have_attribute("aria-valuenow", "100")
    said = element(page).get_by_role("status")
    expect(said).to_contain_text("Requests today: 0 left. Requests today: used up Back ")
    look(page, "widget-exhausted")
    tenant.post("/v1/admin/users/mia/grants", {"limit": "requests_per_day", "amount": 5, "reason": "test"})
    in_state(page, "ok")
    expect(part(page, "notice")).to_be_hidden()
    expect(said).to_have_text("Possible again")


def test_a_wait_counts_down_and_ends_by_itself_and_only_its_beginning_and_end_are_said(tenant, show):
    tenant.plan("free", [bucket("requests_per_minute", "requests", 1, 20)])
    tenant.spend("mia")
    page = show()
    in_state(page, "waiting")
    expect(part(page, "notice")).to_contain_text(re.compile("One moment Possible again in [123] second"))
    expect(limit(page, "Requests per minute")).to_contain_text("0 left")
    said = element(page).get_by_role("status")
    expect(said).to_have_text("")
    in_state(page, "ok")
    expect(part(page, "limit")).to_have_count(0)
    expect(said).to_have_text("Possible again")


def refuse(page, problem):
    page.evaluate("p => document.querySelector('apportion-quota').refusal = p", problem)


def test_a_refusal_is_shown_as_it_came_and_goes_when_its_time_is_over(tenant, show, look):
    tenant.plan("free", [window("requests_per_day", "requests", "day", 9), slots("concurrency", 1)],
                per_call={"max_input_tokens": 4000})
    tenant.hold("mia", lease_seconds=3600)
    page = show()
    in_state(page, "waiting")
    refuse(page, tenant.refusal("mia"))
    expect(part(page, "notice")).to_contain_text("Another call is still running Possible again in 60 minutes")
    expect(element(page).get_by_role("status")).to_contain_text("Another call is still running")
    look(page, "widget-refused")
    refuse(page, tenant.refusal("mia", input=5000))
    expect(part(page, "notice")).to_have_text("This message is too long 4,000 tokens at most")
    tenant.user("mia", suspended=True)
    refuse(page, tenant.refusal("mia"))
    expect(part(page, "notice")).to_have_text("Your access is paused")
    refuse(page, {"code": "input_rate_exceeded", "retryable": True, "retry_after_ms": 1500})
    expect(part(page, "notice")).to_contain_text("That was quick Possible again in 2 seconds")
    # Its time is over; the call that runs still is in the way.
    expect(part(page, "notice")).to_contain_text("One moment")
    refuse(page, {"code": "something_new", "title": "<img src=x onerror=alert(1)>"})
    expect(part(page, "notice")).to_have_text("Not possible right now")
    refuse(page, None)
    expect(part(page, "notice")).to_contain_text("One moment")


def test_without_a_token_it_shows_refusals_and_asks_nobody(product, service, new_page):
    page = new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    element_page.put(product, service.url, lambda: "", attributes="token=''")
    page.goto(product.origin)
    in_state(page, "idle")
    refuse(page, {"code": "monthly_quota_exhausted", "resets_at": "2126-12-01T00:00:00.000Z"})
    expect(part(page, "notice")).to_contain_text("Used up Back ")
    assert not [url for url in asked if "/v1/" in url]


def test_percents_and_hidden_limits_show_no_amount_anywhere(tenant, show, look):
    tenant.plan("free", [
        window("tokens_per_month", "total_tokens", "month", 2_000, visibility="percent"),
        window("requests_per_day", "requests", "day", 2, visibility="hidden"),
    ])
    tenant.spend("mia", 1_234, 0, feature="chat")
    page = show()
    expect(limit(page, "Tokens this month")).to_contain_text("38% left")
    expect(part(page, "limit")).to_have_count(1)
    page.get_by_text("What used it").click()
    expect(part(page, "use").get_by_role("listitem")).to_have_text(["chat100%"])
    assert "1,234" not in element(page).inner_text() and "766" not in element(page).inner_text()
    look(page, "widget-percent")
    tenant.spend("mia", 1, 0)
    in_state(page, "exhausted")
    expect(part(page, "notice")).to_contain_text("Used up Back ")


def test_shares_come_to_a_hundred_percent(tenant, show):
    tenant.plan("free", [window("tokens_per_month", "total_tokens", "month", 2_000, visibility="percent")])
    for feature, tokens in (("chat", 290), ("draw", 355), ("read", 355), ("sing", 0)):
        tenant.spend("mia", tokens, 0, feature=feature)
    page = show()
    page.get_by_text("What used it").click()
    rows = part(page, "use").get_by_role("listitem")
    expect(rows).to_have_text(["draw36%", "read35%", "chat29%", "sing0%"])


@pytest.mark.parametrize("wait", [{"retry_after_ms": 1e300}, {"resets_at": "soon"}, {"resets_at": "9999-12-31T23:59:59.999Z"}])
def test_no_refusal_is_too_odd_to_be_shown(tenant, show, wait):
    tenant.plan("free", [MONTH])
    page = show()
    in_state(page, "ok")
    refuse(page, {"code": "request_rate_exceeded", "retryable": True, **wait})
    expect(part(page, "notice")).to_contain_text("That was quick")


def test_time_is_told_by_the_clock_that_decides(service, product, new_page):
    tenant = service.tenant(now="2026-03-10T12:00:00.000Z")
    tenant.settings(cors_origins=[product.origin])
    tenant.plan("free", [window("requests_per_day", "requests", "day", 1)])
    tenant.spend("mia")
    page = new_page(timezone_id="UTC")
    element_page.put(product, service.url, lambda: tenant.user_token("mia"))
    page.goto(product.origin)
    expect(part(page, "notice")).to_contain_text(re.compile("Back .*(11 Mar|Mar 11)"))
    tenant.set_clock("2026-03-10T23:59:20.000Z")
    page.reload()
    expect(part(page, "notice")).to_contain_text(re.compile(r"Back in \d\d seconds"))


def test_the_page_chooses_what_is_shown_and_how(tenant, show):
    tenant.plan("free", [MONTH, DAY, bucket("requests_per_minute", "requests", 5, 5)])
    tenant.spend("mia", 50_000, 0)
    page = show(attributes='display="used" limits="requests_per_day tokens_per_month"')
    figures = part(page, "figure")
    expect(figures).to_have_text(["1 of 30 used", "50,000 of 200,000 used"])
    element(page).evaluate("e => { e.setAttribute('display', 'percent'); e.setAttribute('limits', 'tokens_per_month') }")
    expect(figures).to_have_text(["75% left"])
    element(page).evaluate("e => { e.labels = {tokens_per_month: '<b>Words</b>'} }")
    expect(part(page, "label")).to_have_text("<b>Words</b>")


def test_it_speaks_japanese_and_tells_time_in_the_viewers_zone(service, product, new_page, look):
    now = datetime.now(timezone.utc)
    tenant = service.tenant(zone="Asia/Tokyo")
    tenant.settings(cors_origins=[product.origin])
    tenant.plan("free", [MONTH, window("requests_per_week", "requests", "week", 50)])
    tenant.hold("mia", 1_000, 0, feature="chat")
    page = new_page(locale="ja-JP", timezone_id="America/New_York", color_scheme="dark", width=390)
    element_page.put(product, service.url, lambda: tenant.user_token("mia"), lang="ja")
    page.goto(product.origin)
    month = limit(page, "今月のトークン")
    expect(month).to_contain_text("残り 199,000")
    expect(month).to_contain_text("実行中の確保分 1,000")
    expect(part(page, "running")).to_contain_text("1 件実行中 · chat")
    # A month ends at midnight in Tokyo: that is the morning of the day before in New York.
    resets = [row["resets_at"] for row in tenant.get("/v1/users/mia/quota")["limits"]]
    ends = datetime.fromisoformat(resets[0].replace("Z", "+00:00"))
    assert ends > now
    there = page.evaluate(
        "at => new Intl.DateTimeFormat('ja', {month: 'short', day: 'numeric', hour: 'numeric', minute: '2-digit'})"
        ".format(new Date(at))", resets[0])
    assert re.search(r"(10|11):00", there), there
    if ends - now > timedelta(days=7):
        expect(month).to_contain_text(f"{there} にリセット")
    look(page, "widget-ja-dark-390")


def test_it_fits_a_narrow_page_and_a_dark_one(tenant, show, look):
    tenant.plan("free", [MONTH, DAY])
    for at in range(4):
        tenant.spend("mia", 9_000 + 90 * at, 1_000, feature="a" * 64, model="sonnet")
    page = show(width=390, color_scheme="dark")
    page.get_by_text("What used it").click()
    expect(part(page, "use").get_by_role("listitem")).to_have_count(1)
    look(page, "widget-dark-390")


def test_everything_is_reached_by_keyboard(tenant, show):
    tenant.plan("free", [MONTH])
    tenant.spend("mia", 900, 100, feature="chat")
    page = show()
    part(page, "use").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(part(page, "use").get_by_role("listitem")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Upgrade"


def test_a_token_is_asked_for_anew_before_it_ends_and_when_it_is_refused(tenant, service, product, new_page):
    tenant.plan("free", [MONTH])
    given = []

    def token():
        given.append("nonsense" if not given else tenant.user_token("mia", ttl="3s"))
        return given[-1]

    page = new_page()
    element_page.put(product, service.url, token)
    page.goto(product.origin)
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    with page.expect_response(f"{product.origin}/token"):
        pass
    tenant.spend("mia", 1_000, 0)
    expect(limit(page, "Tokens this month")).to_contain_text("199,000 left")
    in_state(page, "ok")
    assert len(given) >= 3
    page.faults.forget("401")


def test_a_page_is_told_that_its_token_is_refused_and_may_set_another(tenant, service, product, new_page):
    tenant.plan("free", [MONTH])
    page = new_page()
    element_page.put(product, service.url, lambda: "", attributes="token='nonsense'")
    page.add_init_script("addEventListener('tokenrefused', () => document.title = 'refused')")
    page.goto(product.origin)
    expect(page).to_have_title("refused")
    in_state(page, "offline")
    expect(part(page, "status")).to_have_text("Usage is not available right now")
    element(page).evaluate("(e, token) => e.setAttribute('token', token)", tenant.user_token("mia"))
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    in_state(page, "ok")
    page.faults.forget("401")


def test_it_comes_back_by_itself_when_the_service_does(own_service, product, new_page, look):
    tenant = own_service.tenant()
    product.policy = product.policy.replace("connect-src 'self'", f"connect-src 'self' {own_service.url}")
    product.policy = product.policy.replace("script-src 'self'", f"script-src 'self' {own_service.url}")
    tenant.settings(cors_origins=[product.origin])
    tenant.plan("free", [MONTH])
    token = tenant.user_token("mia")
    page = new_page()
    element_page.put(product, own_service.url, lambda: token)
    page.goto(product.origin)
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    own_service.stop()
    in_state(page, "offline")
    expect(part(page, "status")).to_contain_text("Not connected. As of ")
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    look(page, "widget-offline")
    own_service.start()
    tenant.spend("mia", 1_000, 0)
    expect(limit(page, "Tokens this month")).to_contain_text("199,000 left")
    in_state(page, "ok")
    expect(part(page, "status")).to_be_hidden()
    page.faults.forget("ERR_", "Failed to load")


def test_where_streams_do_not_get_through_it_asks_now_and_then(tenant, show, new_page, product, service):
    tenant.plan("free", [MONTH])
    page = new_page()
    page.clock.install()
    page.route("**/v1/me/quota/stream", lambda route: route.abort())
    element_page.put(product, service.url, lambda: tenant.user_token("mia"))
    page.goto(product.origin)
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    in_state(page, "ok")
    tenant.spend("mia", 1_000, 0)
    page.clock.fast_forward("00:13")
    expect(limit(page, "Tokens this month")).to_contain_text("199,000 left")
    page.faults.forget("ERR_FAILED")


def streams(service):
    with urllib.request.urlopen(f"{service.url}/metrics") as answer:
        return int(re.search(rb"^apportion_quota_streams (\d+)", answer.read(), re.M)[1])


def test_a_page_that_nobody_sees_listens_to_nothing(tenant, show, service):
    tenant.plan("free", [MONTH])
    before = streams(service)
    page = show()
    expect(limit(page, "Tokens this month")).to_contain_text("200,000 left")
    assert streams(service) == before + 1
    turn = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(turn, True)
    for _ in range(200):
        if streams(service) == before:
            break
        page.wait_for_timeout(25)
    assert streams(service) == before
    tenant.spend("mia", 1_000, 0)
    page.evaluate(turn, False)
    expect(limit(page, "Tokens this month")).to_contain_text("199,000 left")
    element(page).evaluate("e => e.remove()")


def test_no_address_says_who_somebody_is(tenant, show):
    tenant.plan("free", [MONTH])
    page = show(user="mia@example.com")
    asked = []
    page.on("request", lambda request: asked.append(request))
    page.reload()
    part(page, "limit").wait_for()
    tenant.spend("mia@example.com", 1_000, 0)
    part(page, "use").wait_for()
    usage = next(request for request in asked if "/v1/me/usage?by=feature" in request.url)
    assert "referer" not in usage.all_headers()
    for request in asked:
        assert "mia" not in request.url and "ey" not in request.url.split("/")[-1], request.url


def test_the_script_is_small_and_kept_by_browsers(service):
    request = urllib.request.Request(f"{service.url}/widget.js", headers={"Accept-Encoding": "br, gzip;q=0.9"})
    with urllib.request.urlopen(request) as answer:
        zipped, headers = answer.read(), answer.headers
    assert len(zipped) < 8_000, len(zipped)
    assert headers["Content-Encoding"] == "gzip" and headers["Content-Type"].startswith("text/javascript")
    assert headers["Access-Control-Allow-Origin"] == "*" and "max-age" in headers["Cache-Control"]
    with urllib.request.urlopen(f"{service.url}/widget.js") as answer:
        assert answer.read() == gzip.decompress(zipped)
    request.add_header("If-None-Match", headers["ETag"])
    with pytest.raises(urllib.error.HTTPError) as unchanged:
        urllib.request.urlopen(request)
    assert unchanged.value.status == 304


def test_a_page_of_an_origin_that_is_not_listed_shows_nothing(tenant, show):
    tenant.plan("free", [MONTH])
    tenant.settings(cors_origins=["https://elsewhere.example"])
    page = show()
    in_state(page, "offline")
    expect(part(page, "limit")).to_have_count(0)
    page.faults.forget("CORS policy", "ERR_FAILED")
