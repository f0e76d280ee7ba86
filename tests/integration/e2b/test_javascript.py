"""E2B's JavaScript SDKs, of the versions in javascript/package.json."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.http.conftest import Listening

pytestmark = pytest.mark.full
_SOURCE = Path(__file__).parent / "javascript"
_INSTALLED = Path(__file__).parents[3] / ".build" / "tests" / "e2b-javascript"


@pytest.fixture(scope="module")
def installed() -> Path:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs node and npm: apt-get install nodejs npm")
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "sdk.mjs"):
        shutil.copy(_SOURCE / name, _INSTALLED / name)
    subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=_INSTALLED, check=True, capture_output=True, timeout=600)
    return _INSTALLED


def test_the_javascript_sdks_do_what_the_python_ones_do(installed: Path, gateway: Listening) -> None:
    url = f"{gateway.url}/e2b"
    env = {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": gateway.key}
    done = subprocess.run(
        ["node", "sdk.mjs"], cwd=installed, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == ("all done\n", 0), done.stderr
