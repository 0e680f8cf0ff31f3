"""The plug-in for LiteLLM: calls of its library, and of its proxy, are held, settled and refused."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import litellm
import openai
import pytest

from apportion import Apportion
from service import free_port, window
from vendor import INPUT, OUTPUT, WORDS

ROOT = Path(__file__).resolve().parents[2]
PLUG_IN = ROOT / "examples/litellm"
sys.path.append(str(PLUG_IN))

# What the proxy wants beyond the library.
NEEDED = ("apscheduler", "backoff", "cryptography", "expression", "fastapi_sso", "jwt", "mcp", "multipart", "orjson",
          "redis", "semver", "soundfile", "uvloop", "websockets")
from apportion_litellm import ApportionPlans  # noqa: E402


@pytest.fixture
def tenant(service):
    tenant = service.tenant()
    tenant.plan("p", [window("requests_per_day", "requests", "day", 3),
                      window("tokens_per_month", "total_tokens", "month", 1_000_000)])
    return tenant


def ask(vendor, prompt, user="u", of="openai", **more):
    base = f"{vendor.url}/v1" if of == "openai" else vendor.url
    return litellm.acompletion(model=f"{of}/m", api_base=base, api_key="k", max_tokens=OUTPUT, user=user,
                               messages=[{"role": "user", "content": prompt}], **more)


async def told(plans, quota):
    """LiteLLM tells of a call's end when it has time: until then it stands here."""
    while plans.calls:
        await asyncio.sleep(0)
    return {row["name"]: row for row in quota()["limits"]}


def test_calls_are_held_settled_and_refused(tenant, vendor):
    plans = ApportionPlans(Apportion(tenant.service.url, tenant.token))
    quota = lambda: tenant.get("/v1/users/u/quota")  # noqa: E731

    async def calls():
        answer = await ask(vendor, "ok|1")
        assert answer.choices[0].message.content == "".join(WORDS)
        rows = await told(plans, quota)
        stream = await ask(vendor, "ok|1", of="anthropic", stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "".join(WORDS)
        rows = await told(plans, quota)
        with pytest.raises(litellm.RateLimitError):
            await ask(vendor, "status 429", num_retries=0)
        rows = await told(plans, quota)
        with pytest.raises(litellm.InternalServerError):
            await ask(vendor, "status 500", num_retries=0, n=3)
        rows = await told(plans, quota)
        before = len(vendor.ids)
        with pytest.raises(litellm.BadRequestError) as refused:
            await ask(vendor, "ok|1", num_retries=3)
        assert "daily_quota_exhausted" in str(refused.value) and len(vendor.ids) == before
        await ask(vendor, "ok|1", user=None)
        return rows

    litellm.callbacks = [plans]
    try:
        rows = asyncio.run(asyncio.wait_for(calls(), 60))
    finally:
        litellm.callbacks = []
    # Two were answered, one came back, one is in doubt: it holds what it reserved.
    assert rows["requests_per_day"]["used"] == 3
    assert rows["tokens_per_month"]["used"] == 2 * (INPUT + OUTPUT)
    assert rows["tokens_per_month"]["held"] > 3 * OUTPUT


def test_who_cannot_be_asked_may_be_asked_later(vendor):
    plans = ApportionPlans(Apportion(f"http://127.0.0.1:{free_port()}", "token", tries=1))
    litellm.callbacks = [plans]
    try:
        with pytest.raises(litellm.ServiceUnavailableError):
            asyncio.run(ask(vendor, "ok|1", num_retries=0))
    finally:
        litellm.callbacks = []
    assert vendor.ids == []


@pytest.fixture
def proxy(tenant, vendor, tmp_path):
    """LiteLLM's own proxy, with the plug-in as its head says; a client that speaks to it."""
    if missing := [name for name in NEEDED if not importlib.util.find_spec(name)]:
        assert os.environ.get("CI") != "true", missing
        pytest.skip(f"LiteLLM's proxy cannot run here without {', '.join(missing)}")
    model = {"model": "openai/m", "api_base": f"{vendor.url}/v1", "api_key": "k"}
    config = {  # YAML, too
        "model_list": [{"model_name": "m", "litellm_params": model}],
        "litellm_settings": {"callbacks": "apportion_litellm.plans", "num_retries": 0},
        "general_settings": {"master_key": "sk-test"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "apportion_litellm.py").symlink_to(PLUG_IN / "apportion_litellm.py")
    port = free_port()
    environment = os.environ | {
        "APPORTION_URL": tenant.service.url, "APPORTION_TOKEN": tenant.token,
        "PYTHONPATH": str(ROOT / "clients/python"), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    run = ["-c", "import litellm; litellm.run_server()", "--config", "config.yaml", "--host", "127.0.0.1"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *run, "--port", str(port)], cwd=tmp_path, env=environment,
                                   stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 180
        while not is_there(f"http://127.0.0.1:{port}/health/liveliness"):
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-test", max_retries=0)
    finally:
        process.kill()
        process.wait()


def is_there(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_calls_through_the_proxy_are_held_settled_and_refused(tenant, vendor, proxy):
    def call(prompt, **more):
        return proxy.chat.completions.create(
            model="m", user="u", max_tokens=OUTPUT, messages=[{"role": "user", "content": prompt}], **more)

    def settled(*figures):
        """The proxy tells of a call's end when it has answered already."""
        until = time.monotonic() + 60
        while True:
            rows = {row["name"]: row for row in tenant.get("/v1/users/u/quota")["limits"]}
            now = rows["requests_per_day"]["used"], rows["tokens_per_month"]["used"], rows["tokens_per_month"]["held"]
            if now == figures:
                return
            assert time.monotonic() < until, (now, figures)
            time.sleep(0.05)

    each = INPUT + OUTPUT
    assert call("ok|1").choices[0].message.content == "".join(WORDS)
    settled(1, each, 0)
    words = [chunk.choices[0].delta.content or "" for chunk in call("ok|2", stream=True) if chunk.choices]
    assert "".join(words) == "".join(WORDS)
    settled(2, 2 * each, 0)
    with pytest.raises(openai.RateLimitError):
        call("status 429")
    settled(2, 2 * each, 0)
    call("ok|3")
    settled(3, 3 * each, 0)
    with pytest.raises(openai.BadRequestError) as refused:
        call("ok|4")
    assert "daily_quota_exhausted" in str(refused.value)
    assert vendor.ids == ["1", "2", "3"]
