"""The peers that do nothing but gRPC: a unary echo and a unary `true`, served by grpc.aio in a process of their own.

`python -m tests.bench.bare_grpc` serves them and prints its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from tests.bench.bare_subprocess import bare

_SERVICE = "bench.Bare"


@dataclass(frozen=True)
class BareGrpc:
    """Calls of the peer; each takes and returns bytes."""

    echo: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    execute: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


@contextlib.asynccontextmanager
async def bare_grpc() -> AsyncIterator[BareGrpc]:
    """Have the peer until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bare_grpc", stdin=DEVNULL, stdout=PIPE
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the peer has no output")
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield BareGrpc(channel.unary_unary(f"/{_SERVICE}/Echo"), channel.unary_unary(f"/{_SERVICE}/Execute"))
    finally:
        process.terminate()
        await process.wait()


async def _echo(request: bytes, context: object) -> bytes:
    del context
    return request


async def _execute(request: bytes, context: object) -> bytes:
    del context
    await bare()
    return request


async def _serve() -> None:
    server = grpc.aio.server()
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
        "Execute": grpc.unary_unary_rpc_method_handler(_execute),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
