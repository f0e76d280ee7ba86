"""Messages to and from a server that is a background process of its thread's sandbox: one JSON text per line.

Output is read only while requests are in progress, so an idle server does not keep its sandbox running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from gateway.mcp_servers.traffic import MESSAGE_LIMIT_BYTES, Incoming, SentTooMuch, Texts, Traffic
from gateway.support.printable_text import printable
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.errors import InputNotTaken, NotFound, SandboxError

_WAIT_S = 20.0
_TAKES_S = 10.0
_PIECE_BYTES = 512 * 1024
_STDERR_BYTES = 2_000
# A daemon that does not wait must not spin the gateway.
_PAUSE_S = 0.02


@dataclass(frozen=True)
class ServerProcess:
    """A background process of a thread's sandbox that speaks MCP, by its id and the time it was started at."""

    sandbox: ThreadSandbox
    id: str
    started_ns: int

    async def is_lost(self) -> bool:
        """Return whether it ended, or another has its place: with its sandbox, or because a gateway started another."""
        try:
            process = await self.sandbox.wait_process(self.id, wait_s=0)
        except NotFound:
            return True
        return not process.running or process.started_ns != self.started_ns

    async def said(self) -> str:
        """Return how it ended, and the end of what it wrote to stderr, for a message; "" for nothing."""
        try:
            process = await self.sandbox.wait_process(self.id, wait_s=0)
            size = process.stderr.size_bytes if process.stderr is not None else 0
            end = b""
            if size:
                offset = max(0, size - _STDERR_BYTES)
                end = (await self.sandbox.read_process(self.id, stderr=True, offset=offset)).data
        except SandboxError:
            return "its process is gone"
        ended = "" if process.running else f"its process ended ({process.outcome} {process.exit_code})"
        shown = printable(end.decode(errors="replace")).strip()
        return ": ".join(filter(None, (ended, shown)))

    async def lines(self, traffic: Traffic) -> AsyncIterator[bytes]:
        """Yield the lines of its output, while requests are under way. Raises SentTooMuch and SandboxError."""
        offset, kept, texts = 0, bytearray(), Texts()
        while True:
            read = partial(self.sandbox.read_process, self.id, offset=offset, wait_s=_WAIT_S)
            page = await traffic.while_wanted(read)
            if page.offset != offset:
                raise SentTooMuch("it wrote more than could be read")
            if not page.data:
                if page.end:
                    return
                await asyncio.sleep(_PAUSE_S)
                continue
            offset += len(page.data)
            traffic.received(page.data, texts)
            *whole, last = page.data.split(b"\n")
            if whole:
                yield bytes(kept + whole[0])
                for line in whole[1:]:
                    yield line
                kept.clear()
            kept += last
            if len(kept) > MESSAGE_LIMIT_BYTES:
                raise SentTooMuch(f"a message has more than {MESSAGE_LIMIT_BYTES // 2**20} MiB")

    async def write(self, message: SessionMessage) -> None:
        """Write a message to its input. Raises SandboxError."""
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        for start in range(0, len(line), _PIECE_BYTES):
            await self.sandbox.write_process(self.id, line[start : start + _PIECE_BYTES], wait_s=_TAKES_S)


@asynccontextmanager
async def process_transport(process: ServerProcess, traffic: Traffic) -> AsyncGenerator[TransportStreams]:
    """Carry the messages of a session in this block."""
    incoming, read = anyio.create_memory_object_stream[Incoming](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    async with incoming, read, write, outgoing, anyio.create_task_group() as tasks:
        tasks.start_soon(traffic.pass_on, _messages(process, traffic), incoming, "it closed its output")
        tasks.start_soon(_write_all, process, traffic, outgoing, incoming)
        try:
            yield read, write
        finally:
            tasks.cancel_scope.cancel()


async def _messages(process: ServerProcess, traffic: Traffic) -> AsyncIterator[Incoming]:
    async for line in process.lines(traffic):
        try:
            yield SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            yield error


async def _write_all(
    process: ServerProcess,
    traffic: Traffic,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[Incoming],
) -> None:
    try:
        async for message in outgoing:
            await process.write(message)
    except SandboxError as error:
        taken = isinstance(error, InputNotTaken)
        traffic.problem = "it does not read its input" if taken else str(error)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await incoming.aclose()
