"""Plans of users for traffic that goes through LiteLLM, as a library or as its proxy.

    litellm.callbacks = [ApportionPlans()]                      # in your program
    litellm_settings: {callbacks: apportion_litellm.plans}      # in the proxy's config.yaml

The user of a call is its `user`, in the proxy also the end user of the key. APPORTION_URL and
APPORTION_TOKEN say where to ask.
"""

import os

import litellm
from apportion import Apportion, RateLimited, Refused
from apportion.vendors import estimate
from litellm.integrations.custom_logger import CustomLogger


class ApportionPlans(CustomLogger):
    def __init__(self, quota=None):
        super().__init__()
        self.quota = quota or Apportion(os.environ["APPORTION_URL"], os.environ["APPORTION_TOKEN"])
        self.calls = {}  # by LiteLLM's own id of the call

    async def async_pre_call_deployment_hook(self, kwargs, call_type):
        """Before a call goes out. Each of LiteLLM's retries comes here again, and is a call of its own."""
        metadata = kwargs.get("metadata") or kwargs.get("litellm_metadata") or {}
        user = kwargs.get("user") or metadata.get("user_api_key_end_user_id") or metadata.get("user_api_key_user_id")
        if not user:
            return None  # nobody's: nothing to hold it against
        cap = next((name for name in ("max_completion_tokens", "max_tokens") if kwargs.get(name)), "max_tokens")
        choices = kwargs.get("n") or 1  # the cap is one for each of them
        call = self.quota.call(user, model=kwargs["model"].rpartition("/")[2], input_tokens=estimate(kwargs),
                               max_output_tokens=kwargs[cap] * choices if kwargs.get(cap) else None)
        try:
            await call.__aenter__()
        except Refused as refused:
            raise self.as_litellm(refused, kwargs["model"]) from refused
        self.calls[kwargs["litellm_call_id"]] = call
        # Behind one hold stands one call, which tells what it used.
        changed = {**kwargs, "max_retries": 0}
        if call.granted:
            changed[cap] = max(1, call.granted // choices)
        if kwargs.get("stream"):
            changed["stream_options"] = {**(kwargs.get("stream_options") or {}), "include_usage": True}
        return changed

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        if call := self.calls.pop(kwargs["litellm_call_id"], None):
            if usage := getattr(response_obj, "usage", None):
                call.used("openai", usage)  # LiteLLM's own form, whoever the vendor is
            await call.__aexit__(None, None, None)

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        if call := self.calls.pop(kwargs["litellm_call_id"], None):
            error = kwargs.get("exception")
            await call.__aexit__(type(error), error, None)

    @staticmethod
    def as_litellm(refused, model):
        """LiteLLM tries again what is a matter of rate, or of an outage, and nothing else."""
        if isinstance(refused, RateLimited):
            return litellm.RateLimitError(str(refused), llm_provider="apportion", model=model)
        if refused.retryable:
            return litellm.ServiceUnavailableError(str(refused), llm_provider="apportion", model=model)
        return litellm.BadRequestError(str(refused), llm_provider="apportion", model=model)


plans = ApportionPlans() if "APPORTION_URL" in os.environ else None
