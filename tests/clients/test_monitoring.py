"""The alerts and the dashboard: what they ask for is there, and they fire when they should."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "examples/monitoring"
SUFFIXES = r"_(total|bucket|sum|count)$"


def test_every_metric_that_is_asked_for_is_one_of_the_service():
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += re.findall(r"expr: (.*)", (MONITORING / "alerts.yml").read_text())
    names = {name for expression in asked for name in re.findall(r"apportion_[a-z_]+", expression)}
    source = "".join(file.read_text() for file in (ROOT / "src/http/metrics").glob("*.rs"))
    unknown = {name for name in names if f'"{re.sub(SUFFIXES, "", name).removeprefix("apportion_")}"' not in source}
    assert len(names) > 15 and unknown == set()


def test_the_rules_are_rules_and_fire_when_they_should():
    promtool = shutil.which("promtool")
    if not promtool:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing")
        pytest.skip("promtool is not installed (apt: prometheus)")
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *arguments], cwd=MONITORING, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
