"""The examples do what they say: run as they are, against the service and a vendor."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from service import free_port, slots, window
from test_typescript import library  # noqa: F401
from vendor import INPUT, OUTPUT, WORDS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Backend:
    def __init__(self, command, url, env):
        self.url = url
        self.process = subprocess.Popen(command, env=os.environ | env, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while self.ask("nobody", "GET")[0] == 0:
            assert self.process.poll() is None and time.monotonic() < until, "the example does not come up"
            time.sleep(0.05)

    def ask(self, user, method="POST"):
        """Status, headers and text of a question."""
        headers = {"x-user": user, "Content-Type": "application/json"}
        body = json.dumps({"text": "ok|1"}).encode() if method == "POST" else None
        url = f"{self.url}/chat" if body else f"{self.url}/nothing"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=20) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers, refused.read().decode()
        except OSError:
            return 0, {}, ""

    def stop(self):
        self.process.kill()
        self.process.wait()


def settings_of(tenant, vendor):
    return {"APPORTION_URL": tenant.service.url, "APPORTION_TOKEN": tenant.token,
            "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{vendor.url}/v1"}


@pytest.fixture
def tenant(service):
    tenant = service.tenant()
    tenant.plan("p", [window("requests_per_day", "requests", "day", 2),
                      window("tokens_per_month", "total_tokens", "month", 1_000_000), slots("concurrency", 1)])
    return tenant


def use(backend, tenant):
    """Two calls are answered and settled, the third is told why not."""
    for _ in range(2):
        status, _, text = backend.ask("mia")
        assert (status, text) == (200, "".join(WORDS))
    status, headers, text = backend.ask("mia")
    assert (status, headers.get("Retry-After"), json.loads(text)["code"]) == (429, None, "daily_quota_exhausted")
    tenant.hold("tom")
    status, headers, text = backend.ask("tom")
    assert (status, json.loads(text)["code"]) == (429, "concurrency_exceeded")
    assert int(headers["Retry-After"]) > 500
    rows = {row["name"]: row for row in tenant.get("/v1/users/mia/quota")["limits"]}
    assert (rows["tokens_per_month"]["used"], rows["tokens_per_month"]["held"]) == (2 * (INPUT + OUTPUT), 0)


def test_the_fastapi_backend(tenant, vendor):
    port = free_port()
    env = settings_of(tenant, vendor) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES / "fastapi", "app:app", "--port", str(port),
               "--log-level", "warning"]
    backend = Backend(command, f"http://127.0.0.1:{port}", env)
    try:
        use(backend, tenant)
    finally:
        backend.stop()


def test_the_node_backend(tenant, vendor, node, library, tmp_path):  # noqa: F811
    # As a product has it: a folder with its packages, this library among them.
    (tmp_path / "server.mjs").write_text((EXAMPLES / "node/server.mjs").read_text())
    packages = tmp_path / "node_modules"
    packages.mkdir()
    (packages / "openai").symlink_to(node / "openai")
    ours = packages / "apportion"
    ours.mkdir()
    manifest = Path(__file__).resolve().parents[2] / "clients/typescript/package.json"
    (ours / "package.json").write_text(manifest.read_text())
    (ours / "dist").symlink_to(library.parent)
    port = free_port()
    backend = Backend(["node", tmp_path / "server.mjs", str(port)], f"http://127.0.0.1:{port}", settings_of(tenant, vendor))
    try:
        use(backend, tenant)
    finally:
        backend.stop()


@pytest.mark.parametrize("file", ["fastapi/app.py", "node/server.mjs"])
def test_a_product_changes_at_most_fifteen_lines(file):
    added = [line for line in (EXAMPLES / file).read_text().splitlines() if re.search(r"(#|//) \+$", line)]
    assert 0 < len(added) <= 15
