"""One gateway with an HTTP listener for all tests of MCP: two tenants, and an issuer of tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served
from tests.token_issuer import TokenIssuer

MODERN, LEGACY = "2026-07-28", "2025-11-25"
_MODES = {MODERN: "auto", LEGACY: "legacy"}
ASKS = """\
version: 1
description: Deploying needs an approval, and secrets are not for agents.
rules:
  - id: files
    tools: [ls, read_file, write_file, edit_file, glob, grep]
    effect: allow
    reason: The sandbox is the agent's.
  - id: no-secrets
    tools: [read_file]
    paths: [/workspace/secret/**]
    effect: deny
    reason: Secrets are not for agents.
  - id: commands
    tools: [execute]
    effect: allow
    reason: The sandbox is the agent's.
  - id: deploys
    tools: [execute]
    argv: [[touch, deployed]]
    effect: ask
    reason: A person looks at each deployment.
"""


@dataclass(frozen=True)
class Served:
    """A gateway with HTTP at `http`, and keys of its tenants; `other_key` is of the tenant whose policy asks."""

    home: Home
    address: str
    http: str
    key: str
    other_key: str
    issuer: TokenIssuer

    @property
    def url(self) -> str:
        return f"http://{self.http}/mcp"


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a gateway; when the last test is over nothing of it is left in Docker."""
    home = make_home(tmp_path_factory.mktemp("gateway"))
    other_key = home.add_tenant("other", ASKS)
    ready = home.config.parent / "http"
    with TokenIssuer() as issuer:
        home.configure(identity={"jwt": [issuer.settings()]})
        with served(home, None, "--http", "127.0.0.1:0", "--http-ready-file", str(ready)) as running:
            http = ready.read_text(encoding="utf-8")
            yield Served(home, running.address, http, home.key, other_key, issuer)
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


Connect = Callable[..., AbstractAsyncContextManager[McpClient]]


@pytest.fixture
def connect(gateway: Served) -> Connect:
    """Return a function that connects the official client: to a thread, by a revision, with a key."""

    @asynccontextmanager
    async def connected(
        revision: str = MODERN, *, thread: str = "", key: str = "", **options: Any
    ) -> AsyncIterator[McpClient]:
        url = f"{gateway.url}/threads/{thread}" if thread else gateway.url
        headers = {"authorization": f"Bearer {key or gateway.key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(url, http_client=http)
            async with McpClient(transport, mode=_MODES[revision], **options) as client:
                assert client.protocol_version == revision
                yield client

    return connected


Post = Callable[..., httpx2.Response]


@pytest.fixture
def post(gateway: Served) -> Iterator[Post]:
    """Return a function that posts a message as a client of 2025-11-25, but for these headers."""
    with httpx2.Client(timeout=60) as http:

        def send(
            message: Mapping[str, Any] | bytes,
            headers: Mapping[str, str | None] | None = None,
            *,
            path: str = "/mcp",
            method: str = "POST",
        ) -> httpx2.Response:
            usual: dict[str, str | None] = {
                "authorization": f"Bearer {gateway.key}",
                "content-type": "application/json",
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": LEGACY,
            }
            sent = {name: value for name, value in {**usual, **(headers or {})}.items() if value is not None}
            body = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", "id": 1, **message})
            return http.request(method, f"http://{gateway.http}{path}", content=body, headers=sent)

        yield send
