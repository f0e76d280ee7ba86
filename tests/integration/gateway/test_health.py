"""Health of a real gateway: what works in sandboxes does not serve while the Docker engine is gone, all else does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.serving.health import NOT_SERVING, SERVING
from tests.gateway_process import make_home, served

ENGINE = "/var/run/docker.sock"
RUN, TOOL = "gateway.v1.RunService", "gateway.v1.ToolService"


@contextlib.asynccontextmanager
async def _way_to_the_engine(path: Path) -> AsyncIterator[None]:
    """Have the engine answer at another path until the block ends: then all connections break, and none is made."""
    open_: set[asyncio.StreamWriter] = set()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while some := await reader.read(65536):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection(ENGINE)
        both = {writer, engine_writer}
        open_.update(both)
        await asyncio.gather(pour(reader, engine_writer), pour(engine_reader, writer))
        open_.difference_update(both)

    server = await asyncio.start_unix_server(connected, path)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
        for writer in open_:
            writer.close()


async def test_what_works_in_sandboxes_does_not_serve_while_the_engine_is_gone(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    socket = tmp_path / "engine.sock"
    home.configure(sandbox={"engine_url": f"unix://{socket}"})
    async with contextlib.AsyncExitStack() as last:
        way = await last.enter_async_context(contextlib.AsyncExitStack())
        await way.enter_async_context(_way_to_the_engine(socket))
        life = contextlib.ExitStack()
        # Both in a thread: the way to the engine is on this event loop.
        gateway = await asyncio.to_thread(life.enter_context, served(home, {"OPENAI_API_KEY": "none"}))
        last.push_async_callback(asyncio.to_thread, life.close)
        channel = await last.enter_async_context(grpc.aio.insecure_channel(gateway.address))
        stub = health_pb2_grpc.HealthStub(channel)
        async with asyncio.timeout(90):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=TOOL))
            assert (await watch.read()).status == SERVING
            await way.aclose()
            assert (await watch.read()).status == NOT_SERVING
            for name in ("", RUN):
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
            await way.enter_async_context(_way_to_the_engine(socket))
            assert (await watch.read()).status == SERVING
            watch.cancel()
