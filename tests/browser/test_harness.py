"""What the service shows to a browser apart from pages of its own."""

from service import bucket

READ = """async ([url, token]) => {
    const answer = await fetch(url + "/v1/me/quota", {headers: {authorization: "Bearer " + token}});
    return (await answer.json()).limits[0].remaining;
}"""


def test_the_description_of_the_api_opens(page, service):
    page.goto(f"{service.url}/docs")
    page.get_by_text("/v1/check", exact=True).wait_for()


def test_only_pages_of_listed_origins_read_what_a_user_has_left(page, service, product):
    tenant = service.tenant()
    tenant.plan("p", [bucket("requests_per_minute", "requests", 5, 5)])
    product.files["/"] = ("text/html", "<!doctype html><title>Shop</title>")
    page.goto(product.origin)
    token = tenant.user_token("mia")
    refused = page.evaluate(f"a => ({READ})(a).catch(e => e.name)", [service.url, token])
    assert refused == "TypeError"
    page.faults.forget("CORS policy", "Failed to load resource")
    tenant.settings(cors_origins=[product.origin])
    assert page.evaluate(READ, [service.url, token]) == 5
