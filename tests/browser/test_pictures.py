"""Pictures for the docs: `PICTURES=docs python -m pytest tests/browser -k pictures`."""

import os
from pathlib import Path

import pytest
from service import bucket, slots, window
from test_console import filled_in, sign_in

PICTURES = os.environ.get("PICTURES")
HTML = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Shop</title>
<link rel="stylesheet" href="/shop.css"><script type="module" src="{service}/widget.js"></script>
<main><apportion-quota token="{mia}"></apportion-quota><apportion-quota token="{tom}" theme="dark">
<a slot="action" href="/upgrade">Upgrade</a></apportion-quota></main></html>"""
CSS = """body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: #1c2230 }
main { display: grid; grid-template-columns: 1fr 1fr } apportion-quota { padding: 28px }
apportion-quota[theme=dark] { background: #14161c } a { color: #9db8ff }"""


@pytest.mark.skipif(not PICTURES, reason="PICTURES names no folder")
def test_pictures_of_the_element(service, product, new_page):
    tenant = service.tenant()
    tenant.settings(cors_origins=[product.origin])
    tenant.plan("free", [window("tokens_per_month", "total_tokens", "month", 200_000),
                         window("requests_per_day", "requests", "day", 12), slots("concurrency", 2)])
    for user, calls in (("mia", 5), ("tom", 12)):
        for call in range(calls):
            feature = "summarise" if call % 3 == 2 else "chat"
            tenant.spend(user, 5_200 + 700 * call, 1_100, feature=feature, model="sonnet")
    tenant.hold("mia", 18_000, 6_000, feature="chat", model="sonnet")
    page = new_page(width=860, device_scale_factor=1.5)
    tokens = {user: tenant.user_token(user) for user in ("mia", "tom")}
    product.files["/"] = ("text/html", HTML.format(service=service.url, **tokens))
    product.files["/shop.css"] = ("text/css", CSS)
    page.goto(product.origin)
    page.get_by_text("What used it").first.click()
    page.get_by_text("chat, sonnet").wait_for()
    page.wait_for_timeout(600)
    page.locator("main").screenshot(path=Path(PICTURES) / "quota-element.png")


@pytest.mark.skipif(not PICTURES, reason="PICTURES names no folder")
def test_pictures_of_the_console(service, new_page):
    tenant = service.tenant("2026-11-29T05:00:00.000Z", "Europe/Berlin")
    limits = [bucket("requests_per_minute", "requests", 10, 10), window("requests_per_day", "requests", "day", 45),
              window("tokens_per_month", "total_tokens", "month", 400_000), slots("concurrency", 2)]
    tenant.plan("free", limits)
    users = ["mia", "tom.weber", "ops-bot", "lena", "noor", "sam", "ada"]
    for user in users:
        tenant.user(user, plan="free" if user != "ops-bot" else "pro", verified=True)
    for hour in range(30):
        day, of_day = divmod(5 + hour, 24)
        tenant.set_clock(f"2026-11-{29 + day}T{of_day:02}:30:00.000Z")
        busy = 2 + max(0, 9 - abs(of_day - 12))
        for call in range(busy * 2):
            user = users[(call * call + hour) % (3 + call % 5)]
            if call % 11 == 9:
                tenant.refused_or_spent(user, 3_000, 900)
            else:
                tenant.refused_or_spent(user, 900 + 130 * call, 240 + 9 * hour, feature=("chat", "search")[call % 3 == 2])
    tenant.post("/v1/admin/users/mia/grants", {"limit": "tokens_per_month", "amount": 50_000, "reason": "outage on Friday"})
    page = new_page()
    page.set_viewport_size({"width": 1280, "height": 960})
    sign_in(page, tenant)
    for name, path in (("overview", "/console"), ("user", "/console/users/mia")):
        page.goto(f"{service.url}{path}")
        filled_in(page)
        page.screenshot(path=Path(PICTURES) / f"console-{name}.png")
