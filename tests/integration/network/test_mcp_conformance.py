"""The client scenarios of the MCP conformance suite, against the gateway's session, transport and network door."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The newest suite needs a newer node than many machines have.
PACKAGES = ("@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@22.23.3")
SCENARIOS = {
    "2025-11-25": ("initialize", "tools_call", "sse-retry", "json-schema-2020-12-preservation"),
    "2026-07-28": (
        "tools_call",
        "request-metadata",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ),
}
"""All but those of OAuth logins, of elicitation, and of answers that ask for input: none of these is offered."""


@pytest.fixture(scope="module")
def installed() -> Path:
    """Where the suite is installed, once."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    directory = ROOT / ".build" / "tests" / "mcp-conformance"
    if not (directory / "node_modules" / "@modelcontextprotocol").exists():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "package.json").write_text('{"private": true}', encoding="utf-8")
        command = ("npm", "install", "--no-audit", "--no-fund", *PACKAGES)
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize(
    "revision, scenario", [(revision, name) for revision, names in SCENARIOS.items() for name in names]
)
async def test_a_client_scenario_passes(installed: Path, revision: str, scenario: str) -> None:
    modules = installed / "node_modules"
    client = shlex.join([sys.executable, "-m", "tests.mcp_conformance_client"])
    process = await asyncio.create_subprocess_exec(
        modules / ".bin" / "node",
        modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js",
        *("client", "--command", client, "--scenario", scenario, "--spec-version", revision, "--timeout", "90000"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    report = said.decode(errors="replace")
    assert "OVERALL: PASSED" in report, report
    counted = re.search(r"Passed: (\d+)/\1, 0 failed", report)
    assert counted is not None, report
