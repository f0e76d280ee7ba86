"""Programs that use MCP servers: mcp-remote, and the inspector's command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client.client import Client as McpClient
from mcp.client.stdio import stdio_client

from tests.integration.mcp.conftest import LEGACY, Served
from tests.integration.mcp.node_programs import INSPECTOR, REMOTE, environment, node_program


async def test_mcp_remote_leads_a_client_that_starts_processes_to_the_gateway(gateway: Served, tmp_path: Path) -> None:
    command = node_program(REMOTE)
    options = [f"{gateway.url}/threads/remote", "--allow-http", "--transport", "http-only"]
    process = StdioServerParameters(
        command=command[0],
        args=[*command[1:], *options, "--header", f"Authorization: Bearer {gateway.key}"],
        env=environment(command, MCP_REMOTE_CONFIG_DIR=str(tmp_path)),
    )
    with (tmp_path / "stderr").open("w") as errors:
        async with McpClient(stdio_client(process, errlog=errors), mode="legacy") as client:
            assert client.protocol_version == LEGACY
            result = await client.call_tool("execute", {"command": "echo through two programs"})
    assert result.structured_content is not None
    assert (result.structured_content["stdout"], result.structured_content["thread"]) == (
        "through two programs\n",
        "remote",
    )


def test_the_inspector_lists_tools_and_resources_and_calls(gateway: Served) -> None:
    assert "execute" in {tool["name"] for tool in _inspected(gateway, "tools/list")["tools"]}
    call = ["--tool-name", "write_file", "--tool-arg", "path=seen.txt", "--tool-arg", "content=by the inspector"]
    assert _inspected(gateway, "tools/call", *call)["isError"] is False
    listed = _inspected(gateway, "resources/list")["resources"]
    assert [one["uri"] for one in listed] == ["sandbox:///workspace/seen.txt"]
    read = _inspected(gateway, "resources/read", "--uri", listed[0]["uri"])
    assert read["contents"][0]["text"] == "by the inspector"


def _inspected(gateway: Served, method: str, *options: str) -> dict[str, Any]:
    command = node_program(INSPECTOR)
    server = [f"{gateway.url}/threads/inspected", "--transport", "http"]
    header = ["--header", f"Authorization: Bearer {gateway.key}"]
    done = subprocess.run(
        [*command, "--cli", *server, *header, "--method", method, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(command),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
