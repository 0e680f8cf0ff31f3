"""The TypeScript client: the same as for Python, in Node."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from service import bucket, slots, window
from test_python import CAP, NOW, capped, hold_of, tenant, used  # noqa: F401
from vendor import INPUT, OUTPUT

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "clients/typescript"


@pytest.fixture(scope="session")
def library(node):
    """The client, compiled: what its types promise holds."""
    out = node.parent / "apportion"
    done = subprocess.run(["node", node / "typescript/bin/tsc", "-p", SOURCE, "--outDir", out,
                           "--typeRoots", node / "@types"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    (out / "package.json").write_text('{"type":"module"}')
    return out / "index.js"


class Product:
    """A process that makes calls when told to."""

    def __init__(self, node, library, url, token, vendor, spool=None):
        command = ["node", HERE / "typescript.mjs", node, library, url, token, vendor.url, *([spool] if spool else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, what, **how):
        self.process.stdin.write(json.dumps({"do": what, **how}) + "\n")
        self.process.stdin.flush()

    def do(self, what, **how):
        self.start(what, **how)
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def product(node, library, vendor):
    begun = []

    def begin(tenant, spool=None):  # noqa: F811
        begun.append(Product(node, library, tenant.service.url, tenant.token, vendor, spool))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()


WAYS = [{"of": "openai"}, {"of": "openai", "stream": True}, {"of": "anthropic"}, {"of": "anthropic", "stream": True},
        {"of": "openai", "method": "responses"}, {"of": "openai", "method": "responses", "stream": True}]


def test_a_call_is_settled_with_what_the_vendor_says(tenant, product):  # noqa: F811
    node = product(tenant)
    for number, way in enumerate(WAYS):
        assert node.do("call", prompt="ok|1", id=f"r{number}", **way) == {"ok": "answered"}, way
        hold = hold_of(tenant, f"r{number}")
        counted = hold["actual"]
        assert hold["state"] == "settled", way
        figures = (counted["input_tokens"], counted["output_tokens"], counted["cache_read_tokens"])
        assert figures == (INPUT, OUTPUT, 100), way
        assert counted["credits"] == 900 * 3 + 100 * 3 // 10 + OUTPUT * 15
    assert used(tenant) == (len(WAYS) * (INPUT + OUTPUT), 0)


@pytest.mark.parametrize("prompt, end", [
    ("status 400", "released"), ("status 429", "released"), ("status 529", "released"),
    ("status 500", "in_doubt"), ("status 408", "in_doubt"), ("hang up", "in_doubt"),
])
def test_what_the_vendor_did_not_do_comes_back_and_nothing_else_does(tenant, product, prompt, end):  # noqa: F811
    node = product(tenant)
    for number, way in enumerate(WAYS):
        assert "error" in node.do("call", prompt=prompt, id=f"r{number}", **way)
        assert hold_of(tenant, f"r{number}")["state"] == end, way


def test_streams_that_break_or_are_left_are_in_doubt_and_a_vendor_that_is_gone_did_nothing(tenant, product, vendor):  # noqa: F811
    node = product(tenant)
    for number, way in enumerate(way for way in WAYS if way.get("stream")):
        assert "error" in node.do("call", prompt="break|1", id=f"b{number}", **way)
        assert node.do("call", prompt="ok|1", id=f"l{number}", leave=2, **way) == {"ok": "left"}
        assert {hold_of(tenant, f"{of}{number}")["state"] for of in "bl"} == {"in_doubt"}, way
    vendor.stop()
    node = product(tenant)  # without a connection that is still open
    for number, way in enumerate(WAYS):
        assert "error" in node.do("call", prompt="ok|1", id=f"g{number}", **way)
        assert hold_of(tenant, f"g{number}")["state"] == "released", way


def test_refusals_are_errors_with_names(service, product):
    tenant = service.tenant(now=NOW)  # noqa: F811
    only = lambda model: {"models": [model]}  # noqa: E731
    tenant.plan("p", [
        window("requests_per_day", "requests", "day", 0, **only("day")),
        slots("concurrency", 1, **only("slots")),
        bucket("output", "output_tokens", 100, 60, **only("output")),
    ])
    tenant.settings(shape="anthropic")
    tenant.hold("u", model="slots")
    node = product(tenant)
    spent = node.do("check", model="day")
    assert (spent["error"], spent["code"]) == ("QuotaExhausted", "daily_quota_exhausted")
    assert spent["resetsAt"] == "2026-03-11T00:00:00.000Z"
    large = node.do("check", model="output", max_output_tokens=101)
    assert (large["error"], large["max"]) == ("TooLarge", 100)
    busy = node.do("check", model="slots")
    assert (busy["error"], busy["limit"], busy["retryAfterMs"]) == ("RateLimited", "concurrency", 600_000)
    assert node.do("check", feature="Not A Feature")["error"] == "Refused"
    assert node.do("slept") == {"ok": []}
    assert node.do("long", id="long") == {"ok": None}
    assert hold_of(tenant, "long")["state"] == "settled"


def test_a_minute_without_apportion_is_served_by_policy_and_booked_afterwards(own_service, product, tmp_path, capsys):
    tenant = own_service.tenant(now=NOW)  # noqa: F811
    shares = {"pro": 10, "standard": 3, "free": 0}
    users = {f"{plan}-{n}": plan for plan in shares for n in range(3)}
    for plan in shares:
        tenant.plan(plan, [window("tokens_per_month", "total_tokens", "month", 1_000_000_000)])
    for user, plan in users.items():
        tenant.user(user, plan=plan)
    node = product(tenant, tmp_path / "spool")
    for user in users:
        assert node.do("call", prompt="ok|1", user=user, **WAYS[0]) == {"ok": "answered"}
    own_service.stop()
    served = dict.fromkeys(users, 0)
    for second in range(30):
        for number, user in enumerate(users):
            answer = node.do("call", prompt="ok|1", user=user, **WAYS[(number + second) % len(WAYS)])
            served[user] += "ok" in answer
            assert answer.get("error", "Unreachable") == "Unreachable"
        node.do("pass", ms=1000)
    assert served == {user: shares[plan] for user, plan in users.items()}
    node.stop()
    own_service.start()
    heir = product(tenant, tmp_path / "spool")
    assert heir.do("flush") == {"ok": 0}
    each = INPUT + OUTPUT
    for user in users:
        assert used(tenant, user) == ((1 + served[user]) * each, 0), user
    booked = sum(used(tenant, user)[0] - each for user in users)
    with capsys.disabled():
        print(f"\n  {30 * len(users)} calls in the outage, {sum(served.values())} served by policy, "
              f"{booked / (sum(served.values()) * each):.0%} of their tokens booked afterwards")


def test_kills_and_time_outs_leave_no_hold_unexplained_and_no_token_free(tenant, product, vendor, tmp_path, capsys):  # noqa: F811
    rounds = int(os.environ.get("CLIENT_ROUNDS", "20")) // 3
    chance = random.Random(11)
    prompts = ["ok"] * 6 + ["break", "hang up", "stall", "status 529", "status 400", "status 500"]
    expected, ids, kills, left, late = {}, [], 0, 0, 0
    for round in range(rounds):
        node = product(tenant, tmp_path / "spool")
        calls = [{**chance.choice(WAYS), "id": f"{round}-{number}", "timeout": 2000, "leave": chance.choice([None, None, 2]),
                  "prompt": f"{chance.choice(prompts)}|{round}-{number}"} for number in range(25)]
        ids += [one["id"] for one in calls]
        if chance.random() < 0.3:
            for one, ended in zip(calls, node.do("calls", calls=calls)["ok"]):
                refused = ended.get("status") in (400, 529)
                left += ended.get("ok") == "left"
                late += "ok" not in ended and one["prompt"].startswith("stall")
                # Who is cut off when the usage has been told already is settled by it.
                expected[one["id"]] = ("settled" if ended.get("ok") == "answered" else "released" if refused
                                       else "settled in_doubt")
        else:
            # Killed when the vendor has come to work on so many of them: wherever the others are.
            kills += 1
            until, begun = len(vendor.ids) + 1 + chance.randrange(10), vendor.begun
            node.start("calls", calls=calls)
            while len(vendor.ids) < until and begun.wait(30):
                begun.clear()
        node.stop()
    heir = product(tenant, tmp_path / "spool")
    assert heir.do("flush") == {"ok": 0}
    tenant.set_clock("2026-03-10T13:00:00.000Z")
    worked, states, free, unexplained = set(vendor.ids), {}, [], []
    for id in ids:
        hold = hold_of(tenant, id)
        state = hold["state"] if hold else "never asked"
        states[state] = states.get(state, 0) + 1
        if id in worked and state in ("released", "never asked"):
            free.append((id, state))
        if state == "held" or state not in expected.get(id, state):
            unexplained.append((id, state, expected[id]))
        if state == "settled":
            assert (hold["actual"]["input_tokens"], hold["actual"]["output_tokens"]) == (INPUT, OUTPUT), id
    with capsys.disabled():
        print(f"\n  {len(ids)} calls in {rounds} processes, {kills} of these killed with {len(ids) - len(expected)} "
              f"calls under way, {left} calls left, {late} timed out, {len(worked)} worked on; holds: {states}")
    assert (free, unexplained) == ([], [])
    done, held = used(tenant)
    assert done == states.get("settled", 0) * (INPUT + OUTPUT)
    assert done + held >= len(worked) * (INPUT + OUTPUT)


def test_usage_that_is_not_taken_is_unknown_and_what_is_not_sent_is_released(tenant, product, vendor):  # noqa: F811
    node = product(tenant)
    for number, usage in enumerate([{}, None, {"tokens": 5}, "forty", {"prompt_tokens": 1, "completion_tokens": 10**9}]):
        assert "ok" in node.do("used", id=f"r{number}", usage=usage)
        assert hold_of(tenant, f"r{number}")["state"] == "in_doubt", usage
    assert node.do("unsent", id="unsent")["error"] == "TypeError"
    assert hold_of(tenant, "unsent")["state"] == "released"
    assert vendor.bodies == []
    node.do("call", of="openai", prompt="ok|1", id="three", max=100, more={"n": 3})
    assert hold_of(tenant, "three")["reserved"]["output_tokens"] == 300
    assert vendor.bodies[-1]["max_tokens"] == 100


def test_without_apportion_a_call_has_a_cap_and_unknown_usage_is_all_of_it(own_service, product, vendor, tmp_path):
    tenant = capped(own_service)  # noqa: F811
    node = product(tenant, tmp_path / "spool")
    assert node.do("call", of="openai", prompt="ok|1", max=0) == {"ok": "answered"}
    own_service.stop()
    unknown = [{"prompt": "break|1", "stream": True}, {"prompt": "status 500"}, {"prompt": "hang up"},
               {"prompt": "ok|1", "stream": True, "leave": 2}]
    for how in [*unknown, {"prompt": "status 400"}]:
        node.do("call", of="openai", max=0, **how)
    assert vendor.bodies[-1]["max_completion_tokens"] == CAP
    assert node.do("unsent", id="unsent")["error"] == "TypeError"
    assert node.do("used", id="odd", usage={}) == {"ok": None}
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "spool").iterdir()}
    assert modes == {0o600}
    own_service.start()
    assert node.do("flush") == {"ok": 0}
    assert used(tenant) == (INPUT + OUTPUT + len(unknown) * (1000 + CAP) + 40, 0)
