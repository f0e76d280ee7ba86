"""`airlock engine-proxy`: a Docker socket that does not give a gateway root access to the engine's host."""

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer


def engine_proxy(
    *,
    listen: Annotated[Path, typer.Option(help="Socket to create, for the gateway's sandbox.engine_url.")],
    channel_dir: Annotated[Path, typer.Option(help="The gateway's sandbox.channel_dir; created if missing.")],
    engine: Annotated[Path, typer.Option(help="Socket of the engine.")] = Path("/var/run/docker.sock"),
    user: Annotated[int | None, typer.Option(help="Id of the gateway's user and group, which will own both.")] = None,
) -> None:
    """Forward to a Docker engine only the requests that a gateway needs: sandboxes, without access to the host.

    Configure the gateway to use this socket instead of the engine's (docs/deployment.md).
    """
    from sandbox.engine_proxy.proxy import listening_socket

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    channel_dir = channel_dir.absolute()
    channel_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if user is not None:
        os.chown(channel_dir, user, user)
    asyncio.run(_serve(listening_socket(listen, group=user), engine, channel_dir))


async def _serve(listen: socket.socket, engine: Path, channel_dir: Path) -> None:
    from sandbox.engine_proxy.proxy import EngineProxy

    server = await EngineProxy(engine, channel_dir).serve(listen)
    logging.getLogger(__name__).info("forwarding %s to %s", listen.getsockname(), engine)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()
