"""MCP servers over HTTP: through the network door, with credentials that neither the sandbox nor the model sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import trustme

from gateway.client import AuditQuery, Client
from tests.docker_state import containers_of
from tests.gateway_process import Home, make_home, served
from tests.mcp_site import McpSite, mcp_site

SECRET = "sk-real-value-of-the-token"
POLICY = """\
version: 1
limits: {timeout_s: 10}
rules:
  - {id: files, tools: [read, write], paths: [/workspace/**], effect: allow, reason: Any file.}
  - {id: commands, tools: [execute], effect: allow, reason: Anything runs.}
  - {id: tracker, tools: [tracker/*, elsewhere/*, open/*], effect: allow, reason: It is ours.}
  - {id: site, tools: [connect], hosts: [localhost], effect: allow, reason: The tests' own servers.}
"""
OPERATOR = """\
version: 1
rules:
  - {id: loopback, tools: [connect], hosts: [127.0.0.0/8], effect: allow, reason: The tests' own servers.}
"""


@dataclass(frozen=True)
class Network:
    home: Home
    address: str
    tracker: McpSite
    audit_key: str


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    home, authority = make_home(tmp_path_factory.mktemp("mcp-http")), trustme.CA()
    directory = home.config.parent
    authority.cert_pem.write_to_path(directory / "authority.pem")
    (directory / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
    (directory / "policies" / "operator.yaml").write_text(OPERATOR, encoding="utf-8")
    with mcp_site(directory, authority) as tracker, mcp_site(directory, authority, json_response=True) as plain:
        credential = {
            "name": "tracker",
            "env": "TRACKER_TOKEN",
            "hosts": [f"localhost:{tracker.port}"],
            "tools": ["tracker/*"],
            "secret": {"environment": "TRACKER_SECRET"},
        }
        usual = {"pins": "first_use", "timeout_s": 5}
        servers = {
            "tracker": {"url": tracker.url, "credential": "tracker", **usual},
            "open": {"url": plain.url, **usual, "timeout_s": 60},
            "elsewhere": {"url": "https://mcp.invalid/mcp", **usual},
        }
        home.configure(
            operator_policy="policies/operator.yaml",
            network={"ca_file": "authority.pem"},
            agents={"default": {"mcp": {"servers": servers}}},
            tenants={"default": {"policy": "policies/default.yaml", "credentials": [credential]}},
        )
        with served(home, {"TRACKER_SECRET": SECRET, "NO_PROXY": "*"}) as gateway:
            yield Network(home, gateway.address, tracker, home.make_key("default", "audit"))
    assert containers_of(home.instance) == []


@pytest.fixture
async def client(network: Network) -> AsyncIterator[Client]:
    async with Client(network.address, network.home.key) as client:
        yield client


async def test_a_tool_is_called_through_the_door_with_a_brokered_credential(client: Client, network: Network) -> None:
    said = await client.call_tool("tracker/echo", {"text": "hello"}, thread="a")
    assert (said.content, said.outcome) == ("hello", "completed")
    assert set(network.tracker.authorizations) == {f"Bearer {SECRET}"}
    careless = await client.call_tool("tracker/authorization", {}, thread="a")
    assert careless.content == f"Bearer {'*' * len(SECRET)}"
    found = await _connections(network, "a", said.call_id)
    assert [(one["credential"], one["port"], one["host"]) for one in found] == [
        ("tracker", network.tracker.port, "localhost")
    ]


async def _connections(network: Network, thread: str, call_id: str) -> list[dict[str, Any]]:
    """Return the records of a call's connections, which are written as these end."""
    async with Client(network.address, network.audit_key) as auditor:
        while True:
            records = await auditor.audit(AuditQuery(thread=thread, kinds=("connection",)))
            if found := [json.loads(one.details) for one in records if one.call_id == call_id]:
                return found
            await asyncio.sleep(0.05)


async def test_tool_code_of_the_thread_gets_neither_the_secret_nor_its_placeholder(
    client: Client, network: Network
) -> None:
    await client.call_tool("tracker/echo", {"text": "hello"}, thread="b")
    env = await client.call_tool("execute", {"command": "env; cat .airlock/network/* 2>/dev/null"}, thread="b")
    assert SECRET not in env.content
    assert "TRACKER_TOKEN" not in env.content
    assert "airlock_ph_" not in env.content


async def test_progress_arrives_and_a_call_that_takes_too_long_is_cancelled(client: Client, network: Network) -> None:
    pieces: list[bytes] = []
    late = await client.call_tool("tracker/slow", {}, thread="c", on_output=lambda _, data: pieces.append(data))
    assert "did not answer within 5 s" in late.content
    assert b"1/3 step" in b"".join(pieces)
    async with asyncio.timeout(20):
        while not network.tracker.cancelled:
            await asyncio.sleep(0.05)
    assert (await client.call_tool("tracker/echo", {"text": "next"}, thread="c")).content == "next"


async def test_a_server_that_sends_too_much_is_cut(client: Client) -> None:
    huge = await client.call_tool("open/huge", {}, thread="d")
    assert huge.is_error
    assert "16 MiB" in huge.content
    assert (await client.call_tool("open/echo", {"text": "next"}, thread="d")).content == "next"


async def test_what_the_policy_does_not_let_connect_is_refused_with_the_reason(client: Client) -> None:
    refused = await client.call_tool("elsewhere/echo", {}, thread="e")
    assert refused.is_error
    assert "no rule of the policy allows connect: mcp.invalid:443" in refused.content
