"""Scenarios of the conformance suite that call tools of their own, against the server's code without a gateway."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.client import Tool, ToolResult
from gateway.config.http_settings import HttpSettings
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.http.app import make_app
from gateway.http.calls import Calls
from gateway.http.listener import HttpListener, address_of, bind
from gateway.identity.principal import Principal
from gateway.mcp.authorization import Authorization
from gateway.mcp.face import McpFace
from gateway.policy import Policy, PolicyDocument
from gateway.support.heavy_work import Work, at_once
from gateway.tenancy.tenants import Tenant
from tests.integration.mcp.conftest import LEGACY, MODERN
from tests.integration.mcp.node_programs import CONFORMANCE, environment, node_program

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_STREET = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
_SCHEMA: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", **_STREET}},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_TOOLS = {
    "test_simple_text": _NO_ARGUMENTS,
    "test_error_handling": _NO_ARGUMENTS,
    "test_tool_with_progress": _NO_ARGUMENTS,
    "json_schema_2020_12_tool": _SCHEMA,
}
SCENARIOS = ("tools-call-simple-text", "tools-call-error", "tools-call-with-progress", "json-schema-2020-12")


class _Tools:
    """A client of a gateway that would have the tools which the scenarios call."""

    def client(self, _request: object) -> _Tools:
        return self

    def work_for(self, _tenant: str, _size_bytes: int) -> Work:
        return at_once

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool(name, f"The tool {name}", schema) for name, schema in _TOOLS.items()]

    async def call_tool(
        self, name: str, _arguments: object, *, thread: str, on_output: Any = None, **_more: Any
    ) -> ToolResult:
        for part in (b"one", b"two", b"three") if on_output is not None else ():
            await on_output("stdout", part)
        failed = name == "test_error_handling"
        content = b"This tool intentionally returns an error for testing" if failed else _TEXT
        facts = {"call_id": "call_1", "thread": thread, "verdict": "allow", "rule": "tests", "reason": ""}
        ended = {"outcome": "failed" if failed else "completed", "exit_code": None, "evicted": None, "duration_ms": 1.0}
        return ToolResult(stdout_bytes=b"", stderr_bytes=b"", content_bytes=content, is_error=failed, **facts, **ended)  # type: ignore[arg-type]


_TEXT = b"This is a simple text response for testing."


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Serve the face as a gateway does, with the scenarios' tools behind it."""
    tenant = Tenant("tests", Policy(PolicyDocument(version=1)), ModelSettings(), {})

    async def anyone(_credentials: object) -> Principal:
        return Principal(tenant, Caller("key_1"))

    face = McpFace(cast(Calls, _Tools()), Authorization(anyone))
    bound = bind("127.0.0.1:0", shared=False)
    address = address_of(bound, "127.0.0.1:0")  # the listener takes the socket over
    app = make_app(face.routes(), HttpSettings(), loopback=True)
    async with face.running(), HttpListener(app, bound, resolve=Path).serving():
        yield address


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_the_scenarios_pass_whose_tools_a_gateway_could_have(address: str, revision: str) -> None:
    command = node_program(CONFORMANCE)
    for scenario in SCENARIOS:
        options = ["--url", f"http://{address}/mcp", "--scenario", scenario, "--spec-version", revision]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "server", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment(command),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert " 0 failed" in done.stdout
