"""A tool call and a list of tools by MCP beside the same by gRPC: the official clients, and bare HTTP requests."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from rich.table import Table

from gateway.client import Client
from tests.bench.side_by_side import Sample, medians_s
from tests.gateway_process import make_home, served

_SAMPLES, _WARMUP = 200, 20
_NAME, _ARGUMENTS = "execute", {"command": "true"}
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
_LIMIT = 2.0
"""The most that a tool call by MCP may cost, in calls by gRPC."""


async def tables() -> Sequence[Table]:
    """Measure and return the tables."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        home = make_home(Path(directory))
        ready = Path(directory) / "http"
        with served(home, None, "--http", "127.0.0.1:0", "--http-ready-file", str(ready)) as gateway:
            return [await _measured(gateway.address, f"http://{ready.read_text(encoding='utf-8')}/mcp", home.key)]


async def _measured(address: str, url: str, key: str) -> Table:
    async with AsyncExitStack() as stack:
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60)
        await stack.enter_async_context(http)
        airlock = await stack.enter_async_context(Client(address, key))
        official = {
            revision: await stack.enter_async_context(
                McpClient(streamable_http_client(url, http_client=http), mode=mode)
            )
            for revision, mode in (("2026-07-28", "auto"), ("2025-11-25", "legacy"))
        }

        async def by_grpc() -> None:
            await airlock.call_tool(_NAME, _ARGUMENTS)

        async def by_http() -> None:
            params = {"name": _NAME, "arguments": _ARGUMENTS, "_meta": _META}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            accepted = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
            named = {"mcp-method": "tools/call", "mcp-name": _NAME}
            answer = await http.post(url, json=message, headers={**accepted, **named})
            answer.raise_for_status()

        rows: dict[str, tuple[Sample, int]] = {
            "gRPC, gateway.client": (by_grpc, 1),
            "MCP, bare HTTP": (by_http, 1),
            **{f"MCP {revision}, official client": (_calling(client), 1) for revision, client in official.items()},
        }
        medians = await medians_s(rows, samples=_SAMPLES, warmup=_WARMUP)
    table = Table("one call of execute, `true`", "p50", "beside gRPC", f"at most {_LIMIT:g}")
    first_s = next(iter(medians.values()))
    for name, median_s in medians.items():
        kept = "yes" if median_s <= _LIMIT * first_s else "NO"
        table.add_row(name, f"{median_s * 1000:.2f} ms", f"{median_s / first_s:.2f}", kept)
    return table


def _calling(client: McpClient) -> Sample:
    async def call() -> None:
        result: Any = await client.call_tool(_NAME, _ARGUMENTS)
        if result.is_error:
            raise RuntimeError(f"the call failed: {result}")

    return call
