"""Images and runtimes that a tenant may not have, or the engine has not: to a live gateway's calls, and in doctor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.errors import Misconfigured
from tests.docker_state import containers_of
from tests.gateway_process import airlock, make_home, served

ALLOWING = "version: 1\nrules:\n- {id: all, tools: [execute], effect: allow, reason: r}\n"


async def test_a_list_that_gets_shorter_holds_for_a_sandbox_that_lives(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = tmp_path / "narrower.yaml"
    policy.write_text("version: 1\nsandbox: {images: [registry.example.com/**]}\n", encoding="utf-8")
    with served(home) as gateway:
        async with Client(gateway.address, home.key) as client, asyncio.timeout(60):
            assert (await client.call_tool("execute", {"command": "true"}, thread="t")).exit_code == 0
            applied = ["policy", "apply", str(policy), "--operator-layer", "--config", str(home.config), "--json"]
            airlock(*applied)
            while (refused := await client.call_tool("execute", {"command": "true"}, thread="t")).exit_code == 0:
                """Within a second every gateway follows."""
            assert refused.outcome == "failed_to_start"
            assert "'airlock-sandbox' is not one that `images`" in refused.note
            with pytest.raises(Misconfigured, match=r"registry\.example\.com/\*\*"):
                await client.write_file("t", "/workspace/a", b"a")
            policy.write_text("version: 1\n", encoding="utf-8")
            airlock(*applied)
            while (await client.call_tool("execute", {"command": "true"}, thread="t")).exit_code != 0:
                """It is allowed again."""
    assert containers_of(home.instance) == []


def test_doctor_looks_at_what_each_tenant_asks_for(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.add_tenant("gone", f"{ALLOWING}sandbox: {{image: '127.0.0.1:1/none:1'}}\n")
    home.add_tenant("own", f"{ALLOWING}sandbox: {{image: airlock-none}}\n")
    home.add_tenant("other", f"{ALLOWING}sandbox: {{image: 'python:3.12'}}\n")
    home.add_tenant("gvisor", f"{ALLOWING}sandbox: {{runtime: runsc}}\n")
    home.configure(sandbox={"images": ["airlock-*", "127.0.0.1:1/**"]})
    looked = airlock("doctor", "--config", str(home.config), "--json", check=False)
    assert looked.returncode == 1
    findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
    assert findings["tenant default"]["state"] == "ok"
    assert (findings["tenant gone"]["state"], "the first call pulls it" in findings["tenant gone"]["detail"]) == (
        "warning",
        True,
    )
    assert (findings["tenant own"]["state"], "airlock images build" in findings["tenant own"]["fix"]) == (
        "failed",
        True,
    )
    assert (findings["tenant other"]["state"], "airlock-*" in findings["tenant other"]["fix"]) == ("failed", True)
    if findings["runtime runsc"]["state"] != "ok":
        assert findings["tenant gvisor"]["state"] == "failed"
        assert "docs/deployment.md" in findings["tenant gvisor"]["fix"]
