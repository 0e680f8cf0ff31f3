"""Per-user plans in front of every model call. Standard library only.

    quota = Apportion(URL, TOKEN)
    client = quota.openai(openai.OpenAI(), user="u_42", feature="chat")
    client.chat.completions.create(model="gpt-5", messages=[...], stream=True)

A call is checked before it goes out, its lease is extended while it streams, and it is settled
with the vendor's own usage however it ends. What is refused raises a `Refused`.
"""

import asyncio
import http.client
import json
import logging
import socket
import threading
import time
import urllib.parse
import uuid

from . import vendors
from .spool import Spool

log = logging.getLogger("apportion")
REMEMBERED = 10_000  # users whose plan and degraded calls are kept in mind


class Refused(Exception):
    """Apportion says no. `code` names why; `problem` is the whole answer."""

    def __init__(self, status, problem):
        self.status, self.problem = status, problem
        self.code, self.retryable = problem.get("code", "no_answer"), bool(problem.get("retryable", status >= 500))
        self.limit, self.max = problem.get("limit"), problem.get("max")
        self.retry_after_ms, self.resets_at = problem.get("retry_after_ms"), problem.get("resets_at")
        super().__init__(f"{self.code}: {problem.get('detail', status)}")


class QuotaExhausted(Refused):
    """An allowance is used up until `resets_at`; waiting a little does not help."""


class RateLimited(Refused):
    """Too much at once: the same call passes after `retry_after_ms`."""


class TooLarge(Refused):
    """No waiting helps: at most `max` could pass."""


class Unreachable(Refused):
    """Apportion could not be asked, and the plan's policy lets nothing (more) through."""

    def __init__(self, why):
        super().__init__(503, {"code": "unreachable", "retryable": True, "detail": why})


def _refused(status, problem):
    spent = problem.get("code", "").endswith("quota_exhausted")
    kind = QuotaExhausted if spent else TooLarge if status == 413 else RateLimited if status == 429 else Refused
    return kind(status, problem)


class Apportion:
    """One for a process; threads and tasks share it.

    `outage` says for each plan how many calls a minute a user may make while Apportion cannot be
    reached (`{"pro": 10}`, `"*"` for any other; a plan that is not named: none). They need `spool`,
    a folder: what they use is kept there, over restarts, and booked when Apportion is back. Who names
    no cap gets the last one that was seen of the plan, else `outage_output` tokens.
    `tries` and `timeout` bound how long one question takes; `max_wait` (seconds) how long a check
    that is refused for now is waited for.
    """

    def __init__(self, url, token, *, outage=None, outage_output=4096, spool=None, spool_max=10_000,
                 timeout=2.0, tries=3, max_wait=0.0, lease_seconds=120, clock=time.time, sleep=time.sleep):
        parts = urllib.parse.urlsplit(url)
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._netloc, self._base, self._token = parts.netloc, parts.path.rstrip("/"), token
        self._outage, self._timeout, self._tries, self._max_wait = outage or {}, timeout, tries, max_wait
        self._outage_output, self.lease_seconds, self.clock, self._sleep = outage_output, lease_seconds, clock, sleep
        self.spool = Spool(spool, spool_max)
        self._local, self._lock, self._flushing = threading.local(), threading.Lock(), threading.Lock()
        self._plans, self._caps, self._degraded, self._down_until = {}, {}, {}, 0.0
        if outage and not spool:
            raise ValueError("`outage` needs `spool`: what is used meanwhile must survive a restart")

    # What products call.

    def call(self, user, *, request_id=None, plan=None, **check):
        """A call in the making: `with quota.call("u", model="m", input_tokens=9) as call`, or `async with`."""
        return Call(self, user, request_id or str(uuid.uuid4()), plan, check)

    openai, anthropic = vendors.openai, vendors.anthropic  # (client, user, **check)

    def flush(self):
        """Tells Apportion what it could not be told before; answers how much is left."""
        with self._flushing:
            for key, entry in self.spool.pending():
                if not self._deliver(entry):
                    break
                self.spool.done(key)
        return len(self.spool.entries)

    # How it is asked.

    def ask(self, method, path, body=None, tries=None, max_wait=0.0):
        """The answer, or `Refused`. Every question of ours may be put twice: it counts once."""
        left = tries or self._tries
        while True:
            left -= 1
            try:
                return self._send(method, path, body)
            except Refused as refused:
                wait = (refused.retry_after_ms or 100) / 1000
                if refused.status < 500 and refused.retryable and wait <= max_wait:
                    max_wait, left = max_wait - wait, left + 1
                elif refused.status < 500 or left <= 0:
                    raise
            self._sleep(wait)

    def _send(self, method, path, body):
        """One question on this thread's connection. Refusals are asked for as problems."""
        path = f"{self._base}{path}{'&' if '?' in path else '?'}shape=none"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection = getattr(self._local, "connection", None) or self._connect(self._netloc, timeout=self._timeout)
        self._local.connection = connection
        try:
            connection.request(method, path, None if body is None else json.dumps(body, default=str), headers)
            reply = connection.getresponse()
            text = reply.read()
        except BaseException as error:
            connection.close()
            self._local.connection = None
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise Unreachable(f"{type(error).__name__}: {error}") from error
            raise
        try:
            answer = dict(json.loads(text))
        except (ValueError, TypeError):  # not Apportion: a proxy's own page
            answer = {}
        if reply.status < 300 and answer:
            return answer
        raise _refused(reply.status, answer)

    # While it cannot be asked.

    def check(self, call, body):
        """The answer to a check; without a hold it is admitted by the plan's policy, to be booked later."""
        cause = Unreachable("did not answer a moment ago")
        if self.clock() >= self._down_until:
            try:
                answer = self.ask("POST", "/v1/check", body, max_wait=self._max_wait)
                self._remember(self._plans, call.user, answer["plan"]["id"])
                if "max_output_tokens" not in body:
                    self._caps[answer["plan"]["id"]] = answer["granted"]["max_output_tokens"] or self._outage_output
                if self.spool.entries and not self._flushing.locked():
                    threading.Thread(target=self.flush, daemon=True).start()
                return answer
            except Refused as refused:
                if refused.status < 500 and refused.code != "no_answer":
                    raise
                cause, self._down_until = refused, self.clock() + 1.0  # others need not wait for the same
        plan = call.plan or self._plans.get(call.user)
        share = self._outage.get(plan, self._outage.get("*", 0))
        if not isinstance(body.get("max_output_tokens"), int):  # no cap, or one that Apportion would have chosen
            body["max_output_tokens"] = self._caps.get(plan, self._outage_output)
        with self._lock:
            recent = [at for at in self._degraded.get(call.user, ()) if at > self.clock() - 60]
            if len(recent) >= share or not self.spool.put(call.request_id, self._reserve(body), running=True):
                raise cause
            self._remember(self._degraded, call.user, [*recent, self.clock()])
        return {"hold": {"id": None}, "granted": body}

    def _reserve(self, body):
        """What is booked when nobody learns what a degraded call used: as much as it could."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.clock()))
        kept = {name: body[name] for name in ("user", "model", "feature", "input_tokens") if name in body}
        most = {"output_tokens": body["max_output_tokens"], "outcome": "unknown"}
        return {"tell": [kept | most | {"id": body["request_id"], "at": at}]}

    def _remember(self, table, user, value):
        table.pop(user, None)
        table[user] = value  # the last of them
        if len(table) > REMEMBERED:
            table.pop(next(iter(table)), None)

    def finish(self, path, *tell):
        """Ends a hold, now or later: what does not get through is kept."""
        if not self._deliver(entry := {"path": path, "tell": tell}):
            self.spool.put(path, entry)  # without room it falls in doubt

    def _deliver(self, entry):
        """Tells what is known, or the next best if that is not taken. False: it must be told later."""
        for body in entry["tell"]:
            try:
                return self.ask("POST", entry["path"], body) if "path" in entry else self._book(body)
            except Refused as refused:
                if not refused.retryable:
                    log.error("apportion will not take %s: %s", body, refused)
                if refused.status not in (400, 422):  # it is not about the usage
                    return not refused.retryable
        return True

    def _book(self, entry):
        # The check may have been heard though its answer was not: then there is a hold to settle.
        where = urllib.parse.urlencode({"user": entry["user"], "request_id": entry["id"]})
        try:
            path = f"/v1/holds/{self.ask('GET', f'/v1/holds?{where}')['hold']['id']}/settle"
            return self.ask("POST", path, {k: entry[k] for k in entry if k not in ("id", "user", "feature", "at")})
        except Refused as refused:
            if refused.status != 404:
                raise
        try:
            return self.ask("POST", "/v1/usage", entry)
        except Refused as refused:  # a clock that is ahead of Apportion's books at Apportion's now
            if [fault["pointer"] for fault in refused.problem.get("errors", ())] != ["/at"]:
                raise
            return self.ask("POST", "/v1/usage", {k: v for k, v in entry.items() if k != "at"})


class Call:
    """One call to a vendor, from check to settle. `granted` is what may be asked of the vendor;
    `degraded` says that Apportion was not asked; `unsent` are the types of errors by which nothing went out."""

    def __init__(self, quota, user, request_id, plan, check):
        self.quota, self.user, self.request_id, self.plan = quota, user, request_id, plan
        self._body = {"user": user, "request_id": request_id, "input_tokens": 0,
                      "lease_seconds": quota.lease_seconds} | {k: v for k, v in check.items() if v is not None}
        self.hold = self.granted = self._end = None
        self.degraded, self.unsent, self._progress, self._renewed = False, (), 0, 0.0

    def __enter__(self):
        answer = self.quota.check(self, self._body)
        self.hold, self.granted = answer["hold"]["id"], answer["granted"]["max_output_tokens"]
        self.degraded, self._renewed = self.hold is None, self.quota.clock()
        return self

    def used(self, usage_format, usage, model=None):
        """The vendor's own usage object (or a dict of it), as it came. `None`: it told none."""
        usage = usage.model_dump(mode="json") if hasattr(usage, "model_dump") else usage
        if usage is not None:
            self._end = {"usage_format": usage_format, "usage": usage, "model": model or self._body.get("model")}

    def progress(self, output_tokens):
        """Call it while a stream runs: the lease is renewed when half of it is over."""
        self._progress = max(self._progress, int(output_tokens))
        if self.hold and self.quota.clock() >= self._renewed + self._body["lease_seconds"] / 2:
            self._renewed, path = self.quota.clock(), f"/v1/holds/{self.hold}/extend"
            try:
                self.quota.ask("POST", path, {"output_tokens_so_far": self._progress}, tries=1)
            except Refused as refused:  # the call goes on; its hold is settled late
                log.warning("a lease was not extended: %s", refused)

    def __exit__(self, _, error, __):
        failed = error is not None and not self._progress and self._end is None
        did_nothing = failed and ("not_sent" if type(error) in self.unsent else no_work(error))
        if self.degraded and did_nothing:
            self.quota.spool.done(self.request_id)
        elif self.degraded:
            self.quota.spool.end(self.request_id, self._end, self._progress)
        elif did_nothing:
            self.quota.finish(f"/v1/holds/{self.hold}/release", {"reason": did_nothing})
        else:
            self.quota.finish(f"/v1/holds/{self.hold}/settle", *filter(None, [self._end, {"usage": "unknown"}]))

    async def __aenter__(self):
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:  # nobody waits for it any more, but it may hold something
            leaving = threading.Thread(target=self.__exit__, args=(None, ConnectionRefusedError(), None))
            entering.add_done_callback(lambda done: done.exception() or leaving.start())
            raise

    async def __aexit__(self, kind, error, trace):
        await asyncio.shield(asyncio.to_thread(self.__exit__, kind, error, trace))


def no_work(error):
    """Why the vendor cannot have done any work, if that is sure: the reason of a release."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        told_to_wait = status == 503 and "retry-after" in getattr(getattr(error, "response", None), "headers", {})
        return "upstream_refused" if 400 <= status < 500 and status != 408 or status == 529 or told_to_wait else None
    while error is not None:
        nobody = isinstance(error, (ConnectionRefusedError, socket.gaierror))
        if nobody or type(error).__name__ in ("ConnectError", "ConnectTimeout"):
            return "not_sent"
        error = error.__cause__
    return None
