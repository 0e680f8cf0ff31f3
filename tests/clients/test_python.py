"""The Python client: what becomes of a call, however it ends."""

import asyncio
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import anthropic
import openai
import pytest

import apportion
from flaky import Flaky
from service import Refused as NotAdmitted
from service import bucket, slots, window
from vendor import INPUT, OUTPUT, WORDS

HERE = Path(__file__).parent
NOW = "2026-03-10T12:00:00.000Z"
MODEL = {"id": "m", "input": 3_000_000, "output": 15_000_000, "cache_read": 300_000}
SAY = [{"role": "user", "content": "ok|1"}]


@pytest.fixture
def tenant(service):
    tenant = service.tenant(now=NOW)
    tenant.plan("p", [window("tokens_per_month", "total_tokens", "month", 1_000_000_000), slots("concurrency", 1_000_000)])
    tenant.put("/v1/admin/models", {"models": [MODEL], "reason": "test"})
    return tenant


class Clock:
    """The client's own; whoever sleeps lets it pass."""

    def __init__(self, at):
        self.at = at

    def __call__(self):
        return self.at

    def pass_(self, seconds):
        self.at += seconds


def client_of(tenant, **options):
    clock = Clock(1773144000.0)  # NOW
    quota = apportion.Apportion(tenant.service.url, tenant.token, clock=clock, sleep=clock.pass_, **options)
    return quota, clock


def hold_of(tenant, id, user="u"):
    try:
        where = urllib.parse.urlencode({"user": user, "request_id": id})
        return tenant.get(f"/v1/holds?{where}")["hold"]
    except NotAdmitted as missing:
        assert missing.status == 404
        return None


def used(tenant, user="u"):
    rows = tenant.get(f"/v1/users/{user}/quota")["limits"]
    row = next(row for row in rows if row["name"] == "tokens_per_month")
    return row["used"], row["held"]


def vendors_of(quota, vendor, **options):
    """Both vendors, whole and streamed: a name, and what makes a call with a prompt."""
    chat = quota.openai(openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k", **options), "u", feature="chat")
    claude = quota.anthropic(anthropic.Anthropic(base_url=vendor.url, api_key="k", **options), "u")

    def make(create, stream):
        def call(prompt, **more):
            answer = create(model="m", max_tokens=OUTPUT, stream=stream, **more,
                            messages=[{"role": "user", "content": prompt}])
            return list(answer) if stream else answer
        return call

    for name, create in [("openai", chat.chat.completions.create), ("anthropic", claude.messages.create)]:
        yield name, make(create, False)
        yield f"{name}, streamed", make(create, True)


def test_a_call_is_settled_with_what_the_vendor_says(tenant, vendor):
    quota, _ = client_of(tenant)
    for number, (name, call) in enumerate(vendors_of(quota, vendor)):
        answer = call("ok|1", request_id=f"r{number}")
        hold = hold_of(tenant, f"r{number}")
        assert hold["state"] == "settled", name
        counted = hold["actual"]
        figures = (counted["input_tokens"], counted["output_tokens"], counted["cache_read_tokens"])
        assert figures == (INPUT, OUTPUT, 100), name
        assert counted["credits"] == 900 * 3 + 100 * 3 // 10 + OUTPUT * 15
        if name == "openai, streamed":
            # Who did not ask for the usage is not surprised by an event without choices.
            assert "".join(chunk.choices[0].delta.content for chunk in answer) == "".join(WORDS)
    assert used(tenant) == (4 * (INPUT + OUTPUT), 0)


def test_responses_are_settled_too(tenant, vendor):
    quota, _ = client_of(tenant)
    client = quota.openai(openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u")
    client.responses.create(model="m", input="ok|1", max_output_tokens=OUTPUT, request_id="whole")
    with client.responses.create(model="m", input="ok|1", stream=True, max_output_tokens=OUTPUT,
                                 request_id="streamed") as events:
        assert [event.type for event in events][-1] == "response.completed"
    with client.responses.create(model="m", input="break|1", stream=True, max_output_tokens=OUTPUT,
                                 request_id="broken") as events, pytest.raises(openai.APIError):
        list(events)
    states = {id: hold_of(tenant, id)["state"] for id in ("whole", "streamed", "broken")}
    assert states == {"whole": "settled", "streamed": "settled", "broken": "in_doubt"}
    assert used(tenant)[0] == 2 * (INPUT + OUTPUT)


def test_no_more_is_asked_of_the_vendor_than_was_granted(service, vendor):
    tenant = service.tenant(now=NOW)
    tenant.plan("p", [window("tokens_per_month", "total_tokens", "month", 1_000_000)],
                per_call={"max_output_tokens": 70})
    quota, _ = client_of(tenant)
    client = quota.openai(openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u")
    client.chat.completions.create(model="m", messages=SAY, request_id="r")
    assert vendor.bodies[-1]["max_completion_tokens"] == 70
    assert hold_of(tenant, "r")["reserved"]["output_tokens"] == 70


def test_the_same_with_asynchronous_clients(tenant, vendor):
    quota, _ = client_of(tenant)

    async def calls():
        chat = quota.openai(openai.AsyncOpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u")
        claude = quota.anthropic(anthropic.AsyncAnthropic(base_url=vendor.url, api_key="k"), "u")
        await chat.chat.completions.create(model="m", max_tokens=OUTPUT, messages=SAY)
        async for _ in await claude.messages.create(model="m", max_tokens=OUTPUT, messages=SAY, stream=True):
            pass
        stream = await chat.chat.completions.create(
            model="m", max_tokens=OUTPUT, messages=[{"role": "user", "content": "stall|1"}], stream=True,
            request_id="cut")
        reading = asyncio.ensure_future(anext(stream))
        await reading
        # The product's own caller hangs up.
        await stream.close()
        waiting = asyncio.ensure_future(chat.chat.completions.create(
            model="m", max_tokens=OUTPUT, messages=[{"role": "user", "content": "stall|1"}], request_id="gone"))
        while len(vendor.ids) < 4:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(calls())
    assert hold_of(tenant, "cut")["state"] == hold_of(tenant, "gone")["state"] == "in_doubt"
    assert used(tenant)[0] == 2 * (INPUT + OUTPUT)


@pytest.mark.parametrize("prompt, end", [
    ("status 400", "released"), ("status 429", "released"), ("status 529", "released"),
    ("status 500", "in_doubt"), ("status 408", "in_doubt"), ("hang up", "in_doubt"),
])
def test_what_the_vendor_did_not_do_comes_back_and_nothing_else_does(tenant, vendor, prompt, end):
    quota, _ = client_of(tenant)
    for number, (name, call) in enumerate(vendors_of(quota, vendor)):
        with pytest.raises((openai.APIError, anthropic.APIError)):
            call(prompt, request_id=f"r{number}")
        assert hold_of(tenant, f"r{number}")["state"] == end, name


def test_a_vendor_that_is_not_there_did_nothing(tenant, vendor):
    quota, _ = client_of(tenant)
    vendor.stop()
    for number, (name, call) in enumerate(vendors_of(quota, vendor)):
        with pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)):
            call("ok|1", request_id=f"r{number}")
        assert hold_of(tenant, f"r{number}")["state"] == "released", name


def test_a_stream_that_nobody_reads_to_its_end_is_in_doubt(tenant, vendor):
    quota, _ = client_of(tenant)
    chat = quota.openai(openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u").chat.completions
    with chat.create(model="m", max_tokens=OUTPUT, messages=SAY, stream=True, request_id="left") as stream:
        next(stream)
    assert hold_of(tenant, "left")["state"] == "in_doubt"


@pytest.mark.parametrize("usage", [{}, None, {"tokens": 5}, "forty", {"prompt_tokens": 1, "completion_tokens": 10**9}])
def test_usage_that_is_not_taken_is_unknown_and_holds_no_slot(tenant, usage):
    quota, _ = client_of(tenant)
    with quota.call("u", max_output_tokens=OUTPUT, request_id="odd") as call:
        call.used("openai", usage)
    assert hold_of(tenant, "odd")["state"] == "in_doubt"


def test_what_the_vendors_client_does_not_send_is_released(tenant, vendor):
    quota, _ = client_of(tenant)
    wrong = [{"no_such_argument": 1}, {"metadata": {"a": object()}}]
    for number, (name, call) in enumerate(vendors_of(quota, vendor)):
        for kind, more in enumerate(wrong):
            with pytest.raises(TypeError):
                call("ok|1", request_id=f"r{number}{kind}", **more)
            assert hold_of(tenant, f"r{number}{kind}")["state"] == "released", name
    client = quota.openai(openai.AsyncOpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u")
    with pytest.raises(TypeError):
        asyncio.run(client.chat.completions.create(model="m", messages=SAY, request_id="async", no_such_argument=1))
    assert hold_of(tenant, "async")["state"] == "released"
    assert vendor.bodies == []


def test_an_answer_that_cannot_be_read_is_no_call_that_was_not_sent(tenant, vendor):
    quota, _ = client_of(tenant)
    for number, (name, call) in enumerate(vendors_of(quota, vendor)):
        try:
            call("status 200", request_id=f"r{number}")
        except Exception:  # as the vendor's client sees it
            pass
        assert hold_of(tenant, f"r{number}")["state"] == "in_doubt", name


def test_each_of_several_choices_is_reserved(tenant, vendor):
    quota, _ = client_of(tenant)
    client = quota.openai(openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u")
    client.chat.completions.create(model="m", messages=SAY, n=3, max_tokens=100, request_id="r")
    assert hold_of(tenant, "r")["reserved"]["output_tokens"] == 300
    assert vendor.bodies[-1]["max_tokens"] == 100


def test_a_long_stream_keeps_its_hold(tenant):
    quota, clock = client_of(tenant, lease_seconds=60)
    with quota.call("u", input_tokens=5, max_output_tokens=OUTPUT, request_id="long") as call:
        for second in range(1, 200):
            clock.pass_(1)
            tenant.set_clock(f"2026-03-10T12:{second // 60:02}:{second % 60:02}.000Z")
            call.progress(second // 10)
        assert hold_of(tenant, "long")["state"] == "held"
        call.used("openai", {"prompt_tokens": 5, "completion_tokens": 20})
    assert hold_of(tenant, "long")["state"] == "settled"
    assert hold_of(tenant, "long").get("late", False) is False


def test_refusals_are_errors_with_names(service):
    tenant = service.tenant(now=NOW)
    only = lambda model: {"models": [model]}  # noqa: E731
    tenant.plan("p", [
        window("requests_per_day", "requests", "day", 0, **only("day")),
        slots("concurrency", 1, **only("slots")),
        bucket("output", "output_tokens", 100, 60, **only("output")),
    ])
    # Who has a form of its own for others still reads its own refusals.
    tenant.settings(shape="openai")
    quota, clock = client_of(tenant)
    with pytest.raises(apportion.QuotaExhausted) as refused, quota.call("u", model="day"):
        pass
    assert refused.value.code == "daily_quota_exhausted" and not refused.value.retryable
    assert refused.value.resets_at == "2026-03-11T00:00:00.000Z"
    with pytest.raises(apportion.TooLarge) as refused, quota.call("u", model="output", max_output_tokens=101):
        pass
    assert refused.value.max == 100
    with quota.call("u", model="slots"), pytest.raises(apportion.RateLimited) as refused:
        quota.call("u", model="slots").__enter__()
    assert (refused.value.limit, refused.value.retry_after_ms) == ("concurrency", 120_000)
    with pytest.raises(apportion.Refused) as refused, quota.call(7):
        pass
    assert refused.value.code == "invalid_request"
    assert clock() == 1773144000.0, "nobody waits unless told to"


def test_who_may_wait_waits_as_long_as_told_and_no_longer(service):
    tenant = service.tenant(now=NOW)
    tenant.plan("p", [bucket("output", "output_tokens", 100, 60)])
    quota, clock = client_of(tenant, max_wait=20.0)
    with quota.call("u", max_output_tokens=100) as call:
        call.used("openai", {"prompt_tokens": 0, "completion_tokens": 100})
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        tenant.set_clock("2026-03-10T12:00:10.000Z")

    quota._sleep = sleep
    with quota.call("u", max_output_tokens=10):
        pass
    assert slept == [10.0]
    with pytest.raises(apportion.RateLimited), quota.call("u", max_output_tokens=50):
        pass
    assert slept == [10.0]


class Outage:
    """Users of three plans, of which one is closed, over a minute without Apportion."""

    SHARES = {"pro": 10, "standard": 3}

    def __init__(self, service, folder):
        self.service, self.tenant = service, service.tenant(now=NOW)
        for plan in ("pro", "standard", "free"):
            self.tenant.plan(plan, [window("tokens_per_month", "total_tokens", "month", 1_000_000_000)])
        self.quota, self.clock = client_of(self.tenant, outage=self.SHARES, spool=folder)
        self.users = {f"{plan}-{n}": plan for plan in ("pro", "standard", "free") for n in range(3)}
        for user, plan in self.users.items():
            self.tenant.user(user, plan=plan)

    def call(self, user, client, **more):
        return self.quota.openai(client, user).chat.completions.create(
            model="m", max_tokens=OUTPUT, messages=SAY, **more)


def test_a_minute_without_apportion_is_served_by_policy_and_booked_afterwards(own_service, vendor, tmp_path, capsys):
    outage = Outage(own_service, tmp_path / "spool")
    client = openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k")
    for user in outage.users:
        outage.call(user, client)
    own_service.stop()
    served, asked = dict.fromkeys(outage.users, 0), 0
    for _ in range(30):
        for user in outage.users:
            asked += 1
            try:
                outage.call(user, client)
                served[user] += 1
            except apportion.Unreachable as refused:
                assert refused.retryable
        outage.clock.pass_(1)
    assert served == {user: outage.SHARES.get(plan, 0) for user, plan in outage.users.items()}
    assert outage.quota.flush() == sum(served.values())
    own_service.start()
    # The client's clock is ahead of the tenant's, which stands: it is booked all the same.
    assert outage.quota.flush() == 0
    each = INPUT + OUTPUT
    booked = sum(used(outage.tenant, user)[0] - each for user in outage.users)
    for user in outage.users:
        assert used(outage.tenant, user) == ((1 + served[user]) * each, 0), user
    with capsys.disabled():
        print(f"\n  {asked} calls in the outage, {sum(served.values())} served by policy, "
              f"{booked / (sum(served.values()) * each):.0%} of their tokens booked afterwards")
    outage.call("pro-0", client)
    assert used(outage.tenant, "pro-0")[0] == 12 * each


def test_what_a_dead_process_left_is_booked_at_the_most_it_can_have_used(own_service, vendor, tmp_path):
    outage = Outage(own_service, tmp_path / "spool")
    outage.quota.call("pro-0", plan="pro")
    own_service.stop()
    call = outage.quota.call("pro-0", plan="pro", input_tokens=700, max_output_tokens=50, request_id="dead")
    call.__enter__()
    assert call.degraded and call.granted == 50
    outage.quota.spool._file.close()  # its lock goes with it
    own_service.start()
    heir, _ = client_of(outage.tenant, spool=tmp_path / "spool")
    assert heir.flush() == 0
    assert used(outage.tenant, "pro-0") == (750, 0)
    assert heir.flush() == 0 and len(os.listdir(tmp_path / "spool")) == 1


CAP = 2048


def capped(service):
    """A tenant whose plan has a cap of its own."""
    tenant = service.tenant(now=NOW)
    tenant.plan("pro", [window("tokens_per_month", "total_tokens", "month", 1_000_000_000)],
                per_call={"max_output_tokens": CAP})
    return tenant


def test_without_apportion_a_call_has_a_cap_all_the_same(own_service, vendor, tmp_path):
    tenant = capped(own_service)
    quota, clock = client_of(tenant, outage={"*": 10}, spool=tmp_path / "spool")
    of = lambda user, **more: quota.openai(  # noqa: E731
        openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k"), user, **more).chat.completions.create
    of("u")(model="m", messages=SAY, max_tokens=7)
    of("u")(model="m", messages=SAY)
    own_service.stop()
    of("u")(model="m", messages=SAY)
    assert vendor.bodies[-1]["max_completion_tokens"] == CAP
    of("u")(model="m", messages=SAY, n=4)
    assert vendor.bodies[-1]["max_completion_tokens"] == CAP // 4
    of("stranger", plan="other")(model="m", messages=SAY)
    assert vendor.bodies[-1]["max_completion_tokens"] == 4096
    with quota.call("u", max_output_tokens="auto") as call:
        assert call.granted == CAP


@pytest.mark.parametrize("prompt, booked", [
    ("break|1", CAP), ("status 500", CAP), ("hang up", CAP), ("left", CAP), ("longer", 3 * CAP),
    ("odd usage", CAP), ("status 400", None), ("status 429", None), ("unsent", None),
])
def test_without_apportion_unknown_usage_is_the_most_and_not_nothing(own_service, vendor, tmp_path, prompt, booked):
    tenant = capped(own_service)
    quota, _ = client_of(tenant, outage={"*": 10}, spool=tmp_path / "spool")
    create = quota.openai(openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k"), "u").chat.completions.create
    say = {"model": "m", "messages": [{"role": "user", "content": prompt}], "input_tokens": 10}
    create(**say | {"messages": SAY})
    own_service.stop()
    if prompt == "left":
        with create(stream=True, **say) as stream:
            next(stream)
    elif prompt == "longer":
        with quota.call("u", input_tokens=10) as call:
            call.progress(3 * CAP)
    elif prompt == "odd usage":
        with quota.call("u", input_tokens=10) as call:
            call.used("openai", {})
    else:
        with pytest.raises((openai.APIError, TypeError)):
            list(create(stream=True, **say, **({"wrong": 1} if prompt == "unsent" else {})))
    own_service.start()
    assert quota.flush() == 0
    assert used(tenant) == (INPUT + OUTPUT + (10 + booked if booked else 0), 0)


def test_nobody_else_may_read_what_waits_to_be_told(tmp_path):
    quota = apportion.Apportion("http://127.0.0.1:9", "t", outage={"*": 1}, spool=tmp_path / "spool", sleep=lambda _: None)
    quota.call("mia@example.com").__enter__()
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "spool").iterdir()] == [0o600]


def test_a_folder_in_which_nothing_can_be_kept_is_told_at_the_start():
    from apportion.spool import Spool

    with pytest.raises(OSError):
        Spool("/proc/self", 10)


def test_a_check_whose_answer_was_lost_is_booked_once(service, vendor, tmp_path):
    outage = Outage(service, tmp_path / "spool")
    # Every answer is lost, but what was asked is heard.
    deaf = Flaky(service, 1, 0.0)
    deaf.random.random = lambda: 0.6
    deaf.share = 1.0
    lost, _ = client_of(outage.tenant, outage={"*": 5}, spool=tmp_path / "spool2")
    lost._netloc = deaf.url.removeprefix("http://")
    client = openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k")
    lost.openai(client, "pro-0").chat.completions.create(
        model="m", max_tokens=OUTPUT, messages=SAY, request_id="twice")
    assert hold_of(outage.tenant, "twice", "pro-0")["state"] == "held"
    deaf.share = 0.0
    assert lost.flush() == 0
    assert hold_of(outage.tenant, "twice", "pro-0")["state"] == "settled"
    assert used(outage.tenant, "pro-0") == (INPUT + OUTPUT, 0)
    deaf.stop()


def test_a_spool_that_is_full_lets_nothing_more_through(own_service, tmp_path):
    tenant = own_service.tenant(now=NOW)
    own_service.stop()
    quota, _ = client_of(tenant, outage={"*": 100}, spool=tmp_path / "spool", spool_max=3)
    for _ in range(3):
        quota.call("u", input_tokens=1).__enter__()
    with pytest.raises(apportion.Unreachable):
        quota.call("u", input_tokens=1).__enter__()


def test_kills_aborts_and_time_outs_leave_no_hold_unexplained_and_no_token_free(tenant, vendor, tmp_path, capsys):
    rounds = int(os.environ.get("CLIENT_ROUNDS", "20"))
    flaky = Flaky(tenant.service, 7, 0.1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    told = [subprocess.run([sys.executable, HERE / "product.py", flaky.url, tenant.token, vendor.url,
                            tmp_path / "spool", seed, str(rounds)],
                           env=environment, capture_output=True, text=True, check=True).stdout
            for seed in ("a", "b")]
    flaky.stop()
    outcome = dict(line.split() for text in told for line in text.splitlines())
    # What could not be told while they lived is told by whoever comes after.
    quota, _ = client_of(tenant, spool=tmp_path / "spool")
    assert quota.flush() == 0
    tenant.set_clock("2026-03-10T13:00:00.000Z")
    worked, states, free, unexplained, settled = set(vendor.ids), {}, [], [], 0
    for seed in ("a", "b"):
        for round in range(rounds):
            for part in range(4):
                id = f"{seed}-{round}-{part}"
                hold = hold_of(tenant, id)
                state = hold["state"] if hold else "never asked"
                states[state] = states.get(state, 0) + 1
                if id in worked and state in ("released", "never asked"):
                    free.append((id, state))
                if state == "settled":
                    settled += 1
                    assert (hold["actual"]["input_tokens"], hold["actual"]["output_tokens"]) == (INPUT, OUTPUT), id
                expected = {"answered": "settled", "refused": "released", "unsure": "settled in_doubt"}.get(outcome.get(id), state)
                # Who is cut off when the usage has been told already is settled by it.
                if state == "held" or state not in expected:
                    unexplained.append((id, state, outcome.get(id)))
    kills = list(outcome.values()).count("killed")
    with capsys.disabled():
        print(f"\n  {8 * rounds} calls, {len(worked)} of them worked on, {kills} processes killed, {flaky.lost} questions or answers "
              f"lost; holds: {states}")
    assert (free, unexplained) == ([], [])
    done, held = used(tenant)
    assert done == settled * (INPUT + OUTPUT)
    assert held == states.get("in_doubt", 0) * (INPUT + OUTPUT)
    assert done + held >= len(worked) * (INPUT + OUTPUT)
    assert kills > rounds / 4 and settled > rounds / 2
