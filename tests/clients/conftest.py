"""What the tests with vendors' clients share: the service, a vendor, and a count for `./test`."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/browser"), str(ROOT / "clients/python"), str(ROOT / "tests/clients")]

from service import Service  # noqa: E402
from vendor import Vendor  # noqa: E402

MODULES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "clients-node" / "node_modules"


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """The service that most tests share, each with tenants of its own."""
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.stop()


@pytest.fixture
def own_service(tmp_path):
    """A service to be stopped."""
    service = Service(tmp_path / "data")
    yield service
    service.stop()


@pytest.fixture
def vendor():
    vendor = Vendor()
    yield vendor
    vendor.stop()


@pytest.fixture(scope="session")
def node():
    """Node with the vendors' clients beside it: the folder that has them."""
    if not shutil.which("node") or not (MODULES / "openai").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("node or its packages are missing")
        pytest.skip("node or its packages are not installed")
    return MODULES


def pytest_terminal_summary(terminalreporter):
    """The line that `./test` sums up, in the form that cargo has."""
    count = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    failed = count["failed"] + count["error"]
    terminalreporter.write_line(
        f"test result: {'FAILED' if failed else 'ok'}. {count['passed']} passed; {failed} failed; "
        f"{count['skipped']} ignored; with vendors' clients"
    )
