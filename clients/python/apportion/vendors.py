"""The official OpenAI and Anthropic clients, for one user: only what is checked can be called.

The clients' own retries are off: behind one hold stands one call that may have done work.
"""

import asyncio
import contextlib
import json
import operator
import threading
from collections import abc
from types import SimpleNamespace


def openai(quota, client, user, **check):
    """`chat.completions.create` and `responses.create` of an official client, for one user."""
    chat = SimpleNamespace(completions=_Method("chat.completions", _Chat, quota, client, user, check))
    return SimpleNamespace(chat=chat, responses=_Method("responses", _Responses, quota, client, user, check))


def anthropic(quota, client, user, **check):
    """`messages.create` of an official client, for one user."""
    return SimpleNamespace(messages=_Method("messages", _Messages, quota, client, user, check))


class _Method:
    def __init__(self, path, shape, quota, client, user, check):
        self._shape, self._quota, self._user, self._check = shape, quota, user, check
        self._is_async = type(client).__name__.startswith("Async")
        self._create = operator.attrgetter(path)(client.with_options(max_retries=0)).create

    def create(self, *, request_id=None, input_tokens=None, **asked):
        """The client's own, with a `request_id` and a better estimate of the input if you have one."""
        shape = self._shape(asked)
        call = self._quota.call(
            self._user, request_id=request_id, model=asked.get("model"), **self._check,
            input_tokens=estimate(asked) if input_tokens is None else input_tokens,
            max_output_tokens=asked[shape.cap] * shape.choices if asked.get(shape.cap) else None)
        # What the clients raise themselves is about what they will not send, an argument, no key;
        # what happens on the way has types of its own.
        call.unsent = (TypeError, ValueError)
        if self._is_async:
            return self._acreate(call, shape)
        with contextlib.ExitStack() as ends:
            ends.enter_context(call)
            answer, call.unsent = self._create(**shape.request(call)), ()
            if shape.streams:
                ends.pop_all()  # the stream ends the call
                return Stream(call, shape, answer)
            return shape.whole(call, answer)

    async def _acreate(self, call, shape):
        async with contextlib.AsyncExitStack() as ends:
            await ends.enter_async_context(call)
            answer, call.unsent = await self._create(**shape.request(call)), ()
            if shape.streams:
                ends.pop_all()
                return AsyncStream(call, shape, answer)
            return shape.whole(call, answer)


class Stream(abc.Iterator, contextlib.AbstractContextManager):
    """The vendor's events; the call ends when they do, when it is closed, or when nobody wants it."""

    def __init__(self, call, shape, events):
        self._call, self._shape, self._events, self._over = call, shape, events, False

    def __next__(self):
        try:
            while True:
                event = next(self._events)
                if self._shape.event(self._call, event):
                    return event
        except BaseException as error:
            self._end(None if isinstance(error, StopIteration) else error)
            raise

    def _end(self, error=None):
        if not self._over:
            self._over = True
            self._call.__exit__(type(error), error, None)

    def close(self):
        self._end()
        self._events.close()

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if not self._over:
            threading.Thread(target=self._end).start()


class AsyncStream(abc.AsyncIterator, contextlib.AbstractAsyncContextManager):
    __init__, __del__, _end = Stream.__init__, Stream.__del__, Stream._end

    async def __anext__(self):
        try:
            while True:
                event = await anext(self._events)
                if self._shape.event(self._call, event):
                    return event
        except BaseException as error:
            await self._aend(None if isinstance(error, StopAsyncIteration) else error)
            raise

    async def _aend(self, error=None):
        await asyncio.shield(asyncio.to_thread(self._end, error))

    async def close(self):
        await self._aend()
        await self._events.close()

    async def __aexit__(self, *_):
        await self.close()


class _Shape:
    """How one method of a vendor is asked, and where it says what was used."""

    def __init__(self, asked):
        self.asked, self.streams, self.written = asked, bool(asked.get("stream")), 0
        self.cap = next((cap for cap in self.caps if asked.get(cap)), self.caps[0])
        self.choices = asked.get("n") or 1  # the vendor's cap is one for each of them

    def request(self, call):
        """What is sent: at most as much output as was granted."""
        return self.asked | ({self.cap: max(1, call.granted // self.choices)} if call.granted else {})

    def whole(self, call, answer):
        call.used(self.format, answer.usage)
        return answer

    def wrote(self, call, text):
        self.written += len(text or "")
        call.progress(self.written // 4)


class _Chat(_Shape):
    format, caps = "openai", ("max_completion_tokens", "max_tokens")

    def request(self, call):
        options = self.asked.get("stream_options") or {}
        self.hides = not options.get("include_usage")
        return super().request(call) | ({"stream_options": {**options, "include_usage": True}} if self.streams else {})

    def event(self, call, event):
        self.whole(call, event)
        for choice in event.choices:
            self.wrote(call, choice.delta.content)
        return bool(event.choices) or not self.hides  # who did not ask for the usage does not expect it


class _Responses(_Shape):
    format, caps = "openai", ("max_output_tokens",)

    def event(self, call, event):
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            self.whole(call, event.response)
        elif event.type == "response.output_text.delta":
            self.wrote(call, event.delta)
        return True


class _Messages(_Shape):
    format, caps = "anthropic", ("max_tokens",)

    def event(self, call, event):
        if event.type == "message_start":
            self.usage = event.message.usage.model_dump(mode="json")
        elif event.type == "message_delta":
            self.usage |= event.usage.model_dump(mode="json", exclude_none=True)
            call.used(self.format, self.usage)
        elif event.type == "content_block_delta":
            self.wrote(call, getattr(event.delta, "text", ""))
        return True


def estimate(asked):
    """A guess at the input that errs on the safe side: half a token a character."""
    parts = [asked.get(name, "") for name in ("messages", "system", "tools", "input", "instructions")]
    return len(json.dumps(parts, ensure_ascii=False, default=str)) // 2
