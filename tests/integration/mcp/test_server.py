"""The MCP server over HTTP and stdio: the official client against a real gateway with a real engine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client as McpClient
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, InputRequiredResult, InputResponses

from gateway.client import Client
from tests.gateway_process import AIRLOCK
from tests.integration.mcp.conftest import LEGACY, MODERN, Connect, Post, Served

REVISIONS = pytest.mark.parametrize("revision", [MODERN, LEGACY])
DEPLOY = {"command": "touch deployed"}
_GONE_S = 60


def _facts(result: CallToolResult) -> dict[str, Any]:
    facts: dict[str, Any] | None = result.structured_content
    assert facts is not None
    return facts


def _text(result: CallToolResult) -> str:
    return "".join(getattr(block, "text", "") for block in result.content)


@REVISIONS
async def test_the_tools_of_the_tenant_are_listed_with_schemas_and_hints(connect: Connect, revision: str) -> None:
    async with connect(revision) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute"} <= set(tools)
    assert "command" in tools["execute"].input_schema["properties"]
    hints = {name: tool.annotations and tool.annotations.read_only_hint for name, tool in tools.items()}
    assert hints["read_file"] is True
    assert hints["execute"] is False
    assert "exit_code" in (tools["execute"].output_schema or {})["properties"]


@REVISIONS
async def test_a_call_returns_output_exit_code_and_progress_as_the_output_arrives(
    connect: Connect, revision: str
) -> None:
    reported: list[tuple[float, str | None]] = []

    async def take(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        reported.append((progress, message))

    command = "echo first; sleep 0.2; echo wrong >&2; sleep 0.2; echo last; exit 3"
    async with connect(revision) as client:
        result = await client.call_tool("execute", {"command": command}, progress_callback=take)
    facts = _facts(result)
    assert result.is_error
    assert (facts["stdout"], facts["stderr"], facts["exit_code"]) == ("first\nlast\n", "wrong\n", 3)
    assert (facts["verdict"], facts["outcome"], facts["thread"]) == ("allow", "exited", "default")
    assert "".join(message or "" for _, message in reported) == "first\nwrong\nlast\n"
    assert [done for done, _ in reported] == [6, 12, 17]


@REVISIONS
async def test_a_large_result_is_a_link_to_a_resource_that_can_be_read(connect: Connect, revision: str) -> None:
    async with connect(revision) as client:
        result = await client.call_tool("execute", {"command": "seq 1 300000"})
        link = result.content[-1]
        assert link.type == "resource_link"
        read = await client.read_resource(link.uri)
    assert _facts(result)["evicted"]["size_bytes"] == link.size
    assert getattr(read.contents[0], "text", "").splitlines() == [str(number) for number in range(1, 300_001)]


@REVISIONS
async def test_a_cancelled_call_ends_its_command(connect: Connect, gateway: Served, revision: str) -> None:
    thread = f"cancelled-{revision}"
    async with connect(revision, thread=thread) as client:
        await _ends_with_its_caller(gateway, thread, client.call_tool("execute", {"command": LONG}))


@REVISIONS
async def test_a_call_whose_client_disappears_ends_its_command(gateway: Served, revision: str) -> None:
    thread = f"gone-{revision}"
    headers = {
        "authorization": f"Bearer {gateway.key}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": revision,
        **({"mcp-method": "tools/call", "mcp-name": "execute"} if revision == MODERN else {}),
    }
    envelope = {"protocolVersion": revision, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in envelope.items()}
    params = {"name": "execute", "arguments": {"command": LONG}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with httpx2.AsyncClient(timeout=60) as http:
        call = http.post(f"{gateway.url}/threads/{thread}", json=message, headers=headers)
        await _ends_with_its_caller(gateway, thread, call)


async def _ends_with_its_caller(gateway: Served, thread: str, call: Coroutine[Any, Any, object]) -> None:
    """Make a call of LONG, cancel it once its command runs, and see that the command ends."""
    caller = asyncio.create_task(call)
    async with Client(gateway.address, gateway.key) as airlock, asyncio.timeout(_GONE_S):
        while "began" not in [entry.name async for entry in airlock.list_files(thread)]:
            assert not caller.done()
            await asyncio.sleep(0.1)
        caller.cancel()
        await asyncio.wait([caller])
        while "sleep" in (await airlock.call_tool("execute", {"command": _COMMANDS}, thread=thread)).content:
            await asyncio.sleep(0.1)


LONG = "touch began; sleep 600"
_COMMANDS = "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done 2>&1 | grep 600 | grep -v grep"


@REVISIONS
async def test_files_are_resources_that_are_listed_and_read_as_text_or_bytes(
    connect: Connect, gateway: Served, revision: str
) -> None:
    thread = f"files-{revision}"
    async with Client(gateway.address, gateway.key) as airlock:
        await airlock.write_file(thread, "notes/a b.md", b"# caf\xc3\xa9\n")
        await airlock.write_file(thread, "image.png", b"\x89PNG\r\n\x1a\n\xff")
    async with connect(revision, thread=thread) as client:
        listed = {one.name: one for one in (await client.list_resources()).resources}
        assert set(listed) == {"notes/a b.md", "image.png"}
        assert listed["notes/a b.md"].uri == "sandbox:///workspace/notes/a%20b.md"
        text, image = [
            (await client.read_resource(listed[name].uri)).contents[0] for name in sorted(listed, reverse=True)
        ]
        assert getattr(text, "text", "") == "# café\n"
        assert (getattr(image, "blob", ""), image.mime_type) == ("iVBORw0KGgr/", "image/png")
        assert [one.uri_template for one in (await client.list_resource_templates()).resource_templates] == [
            "sandbox:///{+path}"
        ]
        with pytest.raises(MCPError, match="no such file") as missing:
            await client.read_resource("sandbox:///workspace/none")
        assert missing.value.error.data["reason"] == "NOT_FOUND"
        with pytest.raises(MCPError, match="is not a file of the sandbox"):
            await client.read_resource("file:///etc/passwd")


@REVISIONS
async def test_a_denied_call_is_a_tool_error_that_names_the_rule(
    connect: Connect, gateway: Served, revision: str
) -> None:
    async with connect(revision, key=gateway.other_key) as client:
        result = await client.call_tool("read_file", {"path": "/workspace/secret/key"})
        with pytest.raises(MCPError, match="no-secrets"):
            await client.read_resource("sandbox:///workspace/secret/key")
    assert result.is_error
    assert "no-secrets" in _text(result)
    facts = _facts(result)
    assert (facts["verdict"], facts["rule"], facts["outcome"]) == ("deny", "no-secrets", "blocked")


async def test_accepting_in_the_client_approves_nothing_and_the_approver_lets_the_call_run_once(
    connect: Connect, gateway: Served
) -> None:
    shown: list[ElicitRequestParams] = []
    repeated: list[float] = []

    async def accept(_context: object, params: ElicitRequestParams) -> ElicitResult:
        shown.append(params)
        return ElicitResult(action="accept")

    async def approve(progress: float, _total: float | None, message: str | None) -> None:
        """Approve once the gateway has repeated the accepted call and it still waits."""
        repeated.append(progress)
        if progress == 2:
            approval_id = (message or "").split()[-1]
            assert (await approver.approval(approval_id)).status == "pending"
            await approver.resolve_approval(approval_id, "once")

    approver = Client(gateway.address, gateway.home.make_key("other", "approve"))
    options: dict[str, Any] = {"thread": "deploys", "key": gateway.other_key}
    async with approver, connect(MODERN, elicitation_callback=accept, **options) as client:
        result = await client.call_tool("execute", DEPLOY, progress_callback=approve)
        approval_id = _facts(result)["approval_id"]
        assert _facts(result)["outcome"] == "exited"
        assert repeated[:2] == [1, 2], "an accept that approved the call"
        assert (await approver.approval(approval_id)).status == "used"
        again = await client.session.call_tool("execute", DEPLOY, allow_input_required=True)
        assert isinstance(again, InputRequiredResult), "an approval for one call let a second one run"
    (asked,) = shown
    assert asked.mode == "url"
    assert asked.url == f"http://{gateway.http}/approvals/{approval_id}"


async def test_a_call_whose_approval_stays_unanswered_asks_the_client_again(connect: Connect, gateway: Served) -> None:
    options: dict[str, Any] = {"thread": "unanswered", "key": gateway.other_key, "elicitation_callback": _never_asked}
    async with connect(MODERN, **options) as client:
        asked = await client.session.call_tool("execute", DEPLOY, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        (approval_id,) = asked.input_requests or {}
        accepted: InputResponses = {approval_id: ElicitResult(action="accept")}
        again = await client.session.call_tool("execute", DEPLOY, input_responses=accepted, allow_input_required=True)
        assert isinstance(again, InputRequiredResult), "an accept that approved the call"
        assert list(again.input_requests or {}) == [approval_id]


async def _never_asked(_context: object, _params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError("the gateway asked this client")


async def test_a_client_without_urls_gets_the_approval_as_a_result(
    connect: Connect, gateway: Served, post: Post
) -> None:
    async with connect(MODERN, thread="plain", key=gateway.other_key) as client:
        result = await client.call_tool("execute", DEPLOY)
    facts = _facts(result)
    assert result.is_error
    assert (facts["verdict"], facts["outcome"], facts["rule"]) == ("ask", "waiting", "deploys")
    assert facts["approval_url"].endswith(facts["approval_id"])
    assert facts["approval_url"] in _text(result)
    page = post({}, {"authorization": None}, path=f"/approvals/{facts['approval_id']}", method="GET")
    assert page.status_code == 200
    assert f"airlock approvals allow {facts['approval_id']}" in page.text


async def test_an_older_client_that_shows_urls_gets_the_error_that_names_one(connect: Connect, gateway: Served) -> None:
    options: dict[str, Any] = {"thread": "older", "key": gateway.other_key, "elicitation_callback": _never_asked}
    async with connect(LEGACY, **options) as client:
        with pytest.raises(MCPError) as waits:
            await client.call_tool("execute", DEPLOY)
    assert waits.value.error.code == -32042
    (asked,) = waits.value.error.data["elicitations"]
    assert asked["url"] == f"http://{gateway.http}/approvals/{asked['elicitationId']}"


async def test_a_process_serves_a_client_that_starts_it(gateway: Served, tmp_path: Path) -> None:
    env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": gateway.key}
    keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    process = StdioServerParameters(
        command=sys.executable, args=[*AIRLOCK[1:], "mcp", "stdio", "--thread", "started"], env={**keep, **env}
    )
    with (tmp_path / "stderr").open("w+") as errors:
        async with McpClient(stdio_client(process, errlog=errors)) as client:
            assert client.protocol_version == MODERN
            result = await client.call_tool("execute", {"command": "pwd"})
            assert (_facts(result)["stdout"], _facts(result)["thread"]) == ("/workspace\n", "started")
            await _ends_with_its_caller(gateway, "started", client.call_tool("execute", {"command": LONG}))
            assert _facts(await client.call_tool("execute", {"command": "true"}))["exit_code"] == 0
        errors.seek(0)
        assert errors.read() == ""


def test_a_process_without_a_valid_key_says_so_and_ends(gateway: Served) -> None:
    from tests.gateway_process import airlock

    done = airlock("mcp", "stdio", env={"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": "alk_x"}, check=False)
    assert done.returncode == 3
    assert "the API key is not valid" in done.stderr
