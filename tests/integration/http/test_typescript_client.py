"""The TypeScript client: it is built from the API's description, and its own tests run against a gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.http.conftest import Listening

SOURCES = Path(__file__).parents[3] / "clients" / "typescript"


@pytest.mark.full
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs node and npm: apt-get install npm")
def test_its_tests_pass(gateway: Listening, tmp_path: Path) -> None:
    copy = tmp_path / "clients" / "typescript"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("node_modules", "dist", "api.ts"))
    description = tmp_path / "gateway" / "http" / "openapi.json"
    description.parent.mkdir(parents=True)
    shutil.copy(SOURCES.parents[1] / "gateway" / "http" / "openapi.json", description)
    env = {
        **os.environ,
        "AIRLOCK_HTTP": gateway.url,
        "AIRLOCK_API_KEY": gateway.key,
        "AIRLOCK_OTHER_KEY": gateway.other_key,
    }
    for command in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "build"], ["npm", "test"]):
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert "# fail 0" in done.stdout
