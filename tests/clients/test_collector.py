"""Traces, as a collector of OpenTelemetry that others wrote (Rotel) takes and shows them."""

import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from service import Service, free_port, slots

try:
    import rotel
except ImportError:  # it is made for some machines only
    rotel = None

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """It writes what it holds into its log."""

    def __init__(self, folder):
        self.log, self.port = folder / "collector.log", free_port()
        self.process = subprocess.Popen(
            [Path(rotel.__file__).parent / "rotel-agent", "start", "--exporter", "blackhole",
             "--debug-log", "traces", "--debug-log-verbosity", "detailed",
             "--otlp-http-endpoint", f"127.0.0.1:{self.port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"],
            stdout=self.log.open("w"), stderr=subprocess.STDOUT)

    def holds(self, *names):
        """Once it has a span of each name: fields and attributes of all, in the collector's own words."""
        pair = re.compile(r"^ *(?:-> )?([\w. ]+?) *: (?:Str\(|Int\()?(.*?)\)?$", re.MULTILINE)
        until = time.monotonic() + 60
        while True:
            head, *spans = re.split(r"\nSpan #\d+", self.log.read_text())
            spans = [dict(pair.findall(span)) for span in spans]
            found = [span.get("Name") for span in spans]
            if not Counter(names) - Counter(found) and all("End time" in span for span in spans):
                return dict(pair.findall(head)), spans
            assert self.process.poll() is None and time.monotonic() < until, found
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def collector(tmp_path):
    if rotel is None:
        assert os.environ.get("CI") != "true", "rotel is missing"
        pytest.skip("rotel is not installed")
    collector = Collector(tmp_path)
    yield collector
    collector.stop()


@pytest.fixture
def service(collector, tmp_path):
    service = Service(tmp_path / "data", otlp_endpoint=f"http://127.0.0.1:{collector.port}", otlp_sample_ratio="0")
    yield service
    service.stop()


def test_a_collector_holds_our_calls_beneath_those_of_their_callers(service, collector):
    tenant = service.tenant()
    tenant.plan("p", [slots("concurrency", 1)])

    def call(status, traceparent=None):
        request = urllib.request.Request(f"{service.url}/v1/check", method="POST", data=b'{"user":"u"}', headers={
            "Authorization": f"Bearer {tenant.token}", "Content-Type": "application/json",
            **({"traceparent": traceparent} if traceparent else {})})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == status
        except urllib.error.HTTPError as refused:
            assert refused.code == status

    call(200, f"00-{TRACE}-{PARENT}-01")
    call(429, f"00-{TRACE}-{PARENT}-00")
    call(429)
    call(429, f"00-{TRACE}-{PARENT}-01")
    resource, spans = collector.holds("POST /v1/check", "POST /v1/check", "engine", "engine", "ledger.commit")
    assert (resource["service.name"], len(resource["service.instance.id"])) == ("apportion", 32)
    allowed, refused = [span for span in spans if span["Name"] == "POST /v1/check"]
    for span in (allowed, refused):
        assert (span["Trace ID"], span["Parent ID"], span["Kind"]) == (TRACE, PARENT, "SPAN_KIND_SERVER")
        assert (span["http.route"], span["apportion.tenant.id"]) == ("/v1/check", tenant.name)
        assert int(span["Start time"]) <= int(span["End time"])
    assert (allowed["apportion.decision"], allowed["http.response.status_code"]) == ("allow", "200")
    assert (refused["apportion.code"], refused["apportion.limit.name"]) == ("concurrency_exceeded", "concurrency")
    steps = [span for span in spans if span["Kind"] == "SPAN_KIND_INTERNAL"]
    assert {"engine", "ledger.commit"} <= {span["Name"] for span in steps}
    assert {span["Parent ID"] for span in steps} == {allowed["ID"], refused["ID"]}
