"""The real service on a data directory of its own, and tenants in it."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "apportion"

# Scopes of a backend that may do everything within its tenant.
ALL = "check quota admin:read admin:write"


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Service:
    """One server, embedded. It can be stopped and started again on the same port."""

    def __init__(self, data, **settings):
        self.data, self.settings = data, {f"APPORTION_{name.upper()}": value for name, value in settings.items()}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None
        self._ids = count()
        self.start()

    def start(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("APPORTION_")}
        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", self.data],
            env=env | {"APPORTION_LOG": "warn", "APPORTION_WORKERS": "2"} | self.settings,
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while not self.is_ready():
            assert self.process.poll() is None, "the service ended at its start"
            assert time.monotonic() < until, "the service does not come up"
            time.sleep(0.02)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self):
        """At once: connections that are open are cut, as if the machine were gone."""
        self.process.kill()
        self.process.wait()

    def cli(self, *arguments):
        done = subprocess.run(
            [BINARY, *arguments, "--data", self.data], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout.strip()

    def tenant(self, now=None, zone="UTC"):
        """A tenant of one's own. Its clock stands at `now`, or runs."""
        return Tenant(self, f"t{next(self._ids)}", now, zone)


class Refused(Exception):
    """An answer that is none of success: `status`, and `problem` as it came."""

    def __init__(self, status, problem):
        super().__init__(f"{status} {problem}")
        self.status, self.problem = status, problem


class Tenant:
    """A product, and what its backend and its admins do."""

    def __init__(self, service, name, now, zone):
        self.service, self.name = service, name
        service.cli("tenant", "create", name, "--zone", zone, *(["--test"] if now else []))
        self.token = self.mint("--scope", ALL)
        if now:
            self.set_clock(now)

    def mint(self, *arguments):
        return self.service.cli("token", "mint", "--tenant", self.name, *arguments)

    def user_token(self, user, ttl="1h"):
        return self.mint("--user", user, "--ttl", ttl)

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            self.service.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as refused:
            raise Refused(refused.code, json.load(refused)) from None
        return json.loads(text) if text else None

    def get(self, path):
        return self.call("GET", path)

    def put(self, path, body):
        return self.call("PUT", path, body)

    def post(self, path, body):
        return self.call("POST", path, body)

    def set_clock(self, now):
        self.put("/v1/admin/clock", {"now": now})

    def settings(self, **changed):
        self.put("/v1/admin/settings", changed | {"reason": "test"})

    def plan(self, name, limits, **fields):
        """Puts a sheet and makes it the plan of whoever has no other."""
        sheet = {"id": name, "name": name.title(), "limits": limits, **fields}
        self.put(f"/v1/admin/plans/{name}", sheet | {"reason": "test"})
        self.settings(default_plan=name)

    def user(self, user, **fields):
        path = f"/v1/admin/users/{urllib.parse.quote(user, safe='')}"
        return self.put(path, fields | {"reason": "test"})

    def hold(self, user, input=0, output=0, **fields):
        """A call that begins; gives the hold's id."""
        body = {"user": user, "input_tokens": input, "max_output_tokens": output, **fields}
        return self.post("/v1/check", body)["hold"]["id"]

    def settle(self, hold, input=0, output=0):
        self.post(f"/v1/holds/{hold}/settle", {"input_tokens": input, "output_tokens": output})

    def spend(self, user, input=0, output=0, **fields):
        """A call from beginning to end."""
        self.settle(self.hold(user, input, output, **fields), input, output)

    def refused_or_spent(self, user, input=0, output=0, **fields):
        """A call from beginning to end, if it is admitted."""
        try:
            self.spend(user, input, output, **fields)
        except Refused:
            pass

    def refusal(self, user, input=0, output=0, **fields):
        """The problem document of a call that is refused."""
        try:
            self.hold(user, input, output, **fields)
        except Refused as refused:
            return refused.problem
        raise AssertionError("the call was admitted")


def bucket(name, meter, capacity, refill, **fields):
    return {"name": name, "kind": "bucket", "meter": meter, "capacity": capacity,
            "refill_per_minute": refill, **fields}


def window(name, meter, period, limit, **fields):
    return {"name": name, "kind": "window", "meter": meter, "period": period, "limit": limit, **fields}


def slots(name, limit, **fields):
    return {"name": name, "kind": "slots", "limit": limit, **fields}
