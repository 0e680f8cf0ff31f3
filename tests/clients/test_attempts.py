"""How often the vendors' own clients try, when a product hands on what Apportion says.

Behind a small pass-through: what is refused goes on as it came, in the vendor's form; what is
admitted is answered. The tenant's clock stands, so a refusal stays one however long is waited.
"""

import http.client
import json
import subprocess
import threading
from pathlib import Path

import anthropic
import openai
import pytest

from service import bucket, slots, window
from vendor import Anthropic, OpenAi, _Handler, _Server

DRIVER = Path(__file__).with_name("attempts.mjs")
HOP = {"connection", "content-length", "transfer-encoding", "date"}


class PassThrough:
    """What the `model` of a call names is asked of Apportion, as the case says."""

    def __init__(self, tenant, cases, shape):
        through = self

        class Handler(_Handler):
            def do_POST(self):
                through.answer(self)

        self.tenant, self.cases, self.shape = tenant, cases, shape
        self.attempts = 0
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, call):
        body = json.loads(call.rfile.read(int(call.headers["Content-Length"])))
        case = self.cases[body["model"]]
        self.attempts += 1
        if self.attempts in case.get("before", {}):
            case["before"][self.attempts](self.tenant)
        connection = http.client.HTTPConnection("127.0.0.1", self.tenant.service.port, timeout=30)
        headers = {"Authorization": f"Bearer {case.get('token', self.tenant.token)}",
                   "Content-Type": "application/json"}
        connection.request("POST", f"/v1/check?shape={self.shape}", json.dumps(case["check"]), headers)
        told = connection.getresponse()
        answer = json.loads(told.read())
        connection.close()
        kept = [(name, value) for name, value in told.getheaders() if name not in HOP | {"content-type"}]
        if told.status == 200:
            answer = (OpenAi if self.shape == "openai" else Anthropic).whole()
        call.reply(told.status, answer, kept)


# 10,000 output tokens a millisecond: waits that are told are short.
FAST = {"capacity": 1_000_000, "refill": 600_000_000}


@pytest.fixture
def cases(service):
    """A tenant where every case is refused, and for each case: the check, the status, how many
    attempts are right, and Apportion's code."""
    tenant = service.tenant(now="2026-03-10T12:00:00.000Z")
    on = lambda model: {"models": [model]}  # noqa: E731
    tenant.plan("p", [
        window("requests_per_day", "requests", "day", 1, **on("day")),
        window("tokens_per_month", "total_tokens", "month", 10, **on("month")),
        window("spent", "total_tokens", "lifetime", 0, **on("life")),
        bucket("output_tokens_per_minute", "output_tokens", *FAST.values(), **on("soon")),
        bucket("again", "output_tokens", *FAST.values(), **on("again")),
        bucket("requests_per_minute", "requests", 1, 1, **on("minute")),
        slots("concurrency", 1, **on("slots")),
    ])
    for model, size in [("day", 0), ("month", 5), ("minute", 0), ("slots", 0)]:
        tenant.hold("u", size, size, model=model)
    for model in ("soon", "again"):
        tenant.spend("u", 0, FAST["capacity"], model=model)
    tenant.user("gone", suspended=True)
    tenant.settle(tenant.hold("u", request_id="over", model="x"))
    tenant.hold("u", request_id="taken")

    def check(model, tokens=0, **fields):
        return {"user": "u", "model": model, "input_tokens": 0, "max_output_tokens": tokens, **fields}

    def case(code, status, attempts, asked, **more):
        return {"code": code, "status": status, "attempts": attempts, "check": asked, **more}

    def pass_a_second(tenant):
        tenant.set_clock("2026-03-10T12:00:01.000Z")

    return tenant, {
        "day": case("daily_quota_exhausted", 429, 1, check("day")),
        "month": case("monthly_quota_exhausted", 429, 1, check("month", 10)),
        "life": case("quota_exhausted", 429, 1, check("life", 1)),
        "soon": case("output_rate_exceeded", 429, 3, check("soon", 5)),
        # A minute, where the tenant lets no client wait for more than half of one.
        "minute": case("request_rate_exceeded", 429, 1, check("minute"), cap=30),
        "slots": case("concurrency_exceeded", 429, 1, check("slots")),
        "large": case("exceeds_capacity", 413, 1, check("soon", 1_000_001)),
        "wrong": case("invalid_request", 400, 1, {"user": 7}),
        "gone": case("user_suspended", 403, 1, check("x") | {"user": "gone"}),
        "over": case("already_finished", 409, 1, check("x", request_id="over")),
        "taken": case("request_id_reused", 422, 1, check("x", request_id="taken")),
        "nobody": case("unauthenticated", 401, 1, check("x"), token="nonsense"),
        # Refused, and admitted when the client comes back as it was told to.
        "again": case(None, 200, 2, check("again", 5), before={2: pass_a_second}),
    }


def tries_of(cases, shape, call):
    """Calls with every case; what is wrong with any of them."""
    tenant, known = cases
    through = PassThrough(tenant, known, shape)
    told = {}
    for name, case in known.items():
        through.attempts = 0
        tenant.settings(max_auto_retry_seconds=case.get("cap", 60))
        status, code = call(through.url, name)
        told[name] = (status, code, through.attempts)
    through.stop()
    return told, {name: (case["status"], case["code"], case["attempts"]) for name, case in known.items()}


def test_openais_client_tries_again_only_where_it_helps(cases):
    def call(url, model):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k")
        try:
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
            return 200, None
        except openai.APIStatusError as refused:
            if refused.status_code == 429:
                assert refused.code in ("insufficient_quota", "rate_limit_exceeded")
            return refused.status_code, refused.body["details"]["error_code"]

    told, expected = tries_of(cases, "openai", call)
    assert told == expected


def test_anthropics_client_tries_again_only_where_it_helps(cases):
    def call(url, model):
        client = anthropic.Anthropic(base_url=url, api_key="k")
        try:
            client.messages.create(model=model, max_tokens=5, messages=[{"role": "user", "content": "hi"}])
            return 200, None
        except anthropic.APIStatusError as refused:
            assert refused.body["request_id"] == refused.response.headers["x-request-id"]
            return refused.status_code, refused.body["error"]["details"]["error_code"]

    told, expected = tries_of(cases, "anthropic", call)
    assert told == expected


def test_a_spent_allowance_has_the_error_class_that_products_look_for(cases):
    tenant, known = cases
    through = PassThrough(tenant, known, "openai")
    client = openai.OpenAI(base_url=f"{through.url}/v1", api_key="k")
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="day", messages=[])
    assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
    for status, error in [(402, openai.APIStatusError), (403, openai.PermissionDeniedError)]:
        tenant.settings(denial_status=status)
        through.attempts = 0
        with pytest.raises(error):
            client.chat.completions.create(model="day", messages=[])
        assert through.attempts == 1
    through.stop()


@pytest.mark.parametrize("shape", ["openai", "anthropic"])
def test_nodes_clients_try_again_only_where_it_helps(cases, node, shape):
    def call(url, model):
        done = subprocess.run(["node", DRIVER, node, shape, url, model], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return tuple(json.loads(done.stdout))

    told, expected = tries_of(cases, shape, call)
    assert told == expected
