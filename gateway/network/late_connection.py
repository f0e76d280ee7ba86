"""Loads `connection.py`, which serves connections, with the first one: most gateways have none."""

import asyncio
import importlib
import socket
import sys
from contextlib import closing

from gateway.network.outgoing import Exits

_SERVES = "gateway.network.connection"


async def serve(connection: socket.socket, exits: Exits) -> None:
    """Serve one connection to its end, and close it."""
    with closing(connection):
        if _SERVES not in sys.modules:
            await asyncio.to_thread(importlib.import_module, _SERVES)  # it takes a moment
        await importlib.import_module(_SERVES).serve(connection, exits)
