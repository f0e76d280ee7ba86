"""`airlock sandbox forward`: a local port whose connections lead to a port in a sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cancellation import ended
from gateway.cli.command import GatewayCli, InThread
from gateway.cli.terminal import err, out, print_json
from gateway.errors import AirlockError

if TYPE_CHECKING:
    from gateway.client import Client, PortConnection

_PIECE_BYTES = 256 * 1024


async def forward(
    cli: GatewayCli,
    *,
    port: Annotated[int, typer.Argument(min=1, max=65_535, help="Port in the sandbox.")],
    thread: InThread = "default",
    listen: Annotated[str, typer.Option(help="Local address, as HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:0",
) -> None:
    """Listen on a local port, and connect each client to a port that a program in the sandbox listens on.

    Runs until Ctrl-C. A connection that fails is reported and closed.
    """
    from gateway.serving.listening import host_and_port

    clients: set[asyncio.Task[None]] = set()

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(_served(cli.airlock, thread, port, reader, writer))
        clients.add(client)
        client.add_done_callback(clients.discard)

    host, number = host_and_port(listen)
    server = await asyncio.start_server(connect, host.strip("[]"), number, limit=_PIECE_BYTES)
    try:
        address = f"{host}:{server.sockets[0].getsockname()[1]}"
        if cli.as_json:
            print_json({"listening": address})
        else:
            out.print(f"{address} leads to port {port} in the sandbox of thread {thread}, until Ctrl-C")
        await asyncio.Event().wait()
    finally:
        server.close()
        await ended(*clients)


async def _served(
    airlock: Client, thread: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve a local client until both directions have ended; on a failure reset its connection."""
    try:
        async with airlock.forward_port(thread, port) as connection:
            await _relayed(connection, reader, writer)
        writer.close()
    except AirlockError as error:
        err.print(f"a connection failed: {error}")
    except OSError:  # the local client is gone
        pass
    finally:
        if not writer.is_closing():
            writer.transport.abort()


async def _relayed(connection: PortConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def send() -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                await connection.write(data)
            await connection.write_eof()
        except AirlockError:
            return  # the program may still send; if it failed, receive() raises why

    async def receive() -> None:
        while data := await connection.read():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    directions = asyncio.create_task(send()), asyncio.create_task(receive())
    try:
        await asyncio.gather(*directions)
    finally:
        await ended(*directions)
