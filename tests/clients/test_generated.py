"""A client made from the OpenAPI document by a generator that knows nothing of us."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service import slots, window

DOCUMENT = Path(__file__).resolve().parents[2] / "openapi/openapi.json"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """What the generator says; the package `made` can be imported."""
    folder = tmp_path_factory.mktemp("generated")
    run = [sys.executable, "-m", "openapi_python_client", "generate", "--path", DOCUMENT, "--meta", "none",
           "--output-path", folder / "made"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield done.stdout + done.stderr
    sys.path.remove(str(folder))


def test_nothing_of_the_document_is_lost_on_a_generator(generated):
    lost = re.findall(r"WARNING parsing (\S+ \S+)|Unable to (process schema \S+)", generated)
    # It knows neither Prometheus' own form nor events.
    assert {name or schema for name, schema in lost} <= {"GET /metrics", "GET /v1/me/quota/stream"}, generated
    sources = {file.stem for file in (Path(sys.path[0]) / "made/api").rglob("*.py")}
    paths = json.loads(DOCUMENT.read_text())["paths"].values()
    assert {operation["operationId"] for path in paths for operation in path.values()} <= sources


def test_a_generated_client_checks_settles_and_reads_a_quota(generated, service):
    from made import AuthenticatedClient
    from made.api.checks import check
    from made.api.holds import settle_hold
    from made.api.quota import get_user_quota
    from made.models import Allow, CheckRequest, FinishedHold, Problem, Quota, SettleRequest

    tenant = service.tenant(now="2026-03-10T12:00:00.000Z")
    tenant.plan("p", [window("tokens_per_month", "total_tokens", "month", 2000), slots("concurrency", 1)])
    client = AuthenticatedClient(base_url=service.url, token=tenant.token)
    asked = CheckRequest(user="mia", input_tokens=1200, max_output_tokens=512)
    allowed = check.sync(client=client, body=asked)
    assert isinstance(allowed, Allow) and allowed.hold.reserved.total_tokens == 1712
    settle = SettleRequest.from_dict({"input_tokens": 1180, "output_tokens": 380})
    settled = settle_hold.sync(allowed.hold.id, client=client, body=settle)
    assert isinstance(settled, FinishedHold) and settled.hold.state == "settled"
    quota = get_user_quota.sync("mia", client=client)
    assert isinstance(quota, Quota)
    rows = {row.name: row for row in quota.limits}
    assert (rows["tokens_per_month"].used, rows["tokens_per_month"].state) == (1560, "ok")
    assert rows["tokens_per_month"].window.zone == "UTC" and rows["concurrency"].in_use == 0
    refused = check.sync(client=client, body=asked)
    assert isinstance(refused, Problem) and refused.code == "monthly_quota_exhausted"
    assert refused.violations[0].would_fit == 440
