"""Drains the socket that wakes the event loop for grpc.aio.

grpc's thread writes a byte into a socket for each event, and the loop's reader takes one byte a turn. Under load there
is more than one event a turn: the socket fills, the thread blocks, and from then on each turn handles one event. Calls
then wait in grpc's core, out of admission's sight (grpcio 1.85.1, completion_queue.pyx.pxi).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from typing import Any, cast

_READER = "PollerCompletionQueue"
_AT_ONCE = 65_536


def drain_wakeups(loop: asyncio.AbstractEventLoop) -> None:
    """Make grpc's reader empty its socket; call it before a loop's first server or channel, which adds the reader.

    With a grpcio whose reader has another name it has no effect.
    """
    add_reader: Any = loop.add_reader

    def add(source: Any, callback: Any, *args: Any) -> None:
        of_grpc = isinstance(callback, functools.partial) and _READER in repr(callback.func)
        add_reader(source, functools.partial(_drain, source, callback) if of_grpc else callback, *args)

    cast(Any, loop).add_reader = add


def _drain(source: socket.socket, callback: Any) -> None:
    with contextlib.suppress(BlockingIOError):
        source.recv(_AT_ONCE)
    callback()
