"""The plug-in for LiteLLM: calls of its library are held, settled and refused."""

import asyncio
import sys
from pathlib import Path

import litellm
import pytest

from apportion import Apportion
from service import window
from vendor import INPUT, OUTPUT, WORDS

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples/litellm"))
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
