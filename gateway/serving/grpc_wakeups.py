"""What wakes the event loop for grpc.aio, taken as it comes.

grpc's thread writes a byte into a socket for each event, and the loop's reader takes one byte a turn. Under load there
is more than one event a turn: the socket fills, the thread waits to write, and from then on a turn has one event,
however many are ready. Calls then wait in grpc's core, where admission does not see them (grpcio 1.85.1,
completion_queue.pyx.pxi).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from typing import Any, cast

_READER = "PollerCompletionQueue"
_AT_ONCE = 65_536


def take_wakeups_as_they_come(loop: asyncio.AbstractEventLoop) -> None:
    """Have grpc's reader empty its socket; call it before a loop's first server or channel, which adds the reader.

    With a grpcio whose reader is called otherwise this does nothing.
    """
    add_reader: Any = loop.add_reader

    def add(source: Any, callback: Any, *args: Any) -> None:
        of_grpc = isinstance(callback, functools.partial) and _READER in repr(callback.func)
        add_reader(source, functools.partial(_emptied, source, callback) if of_grpc else callback, *args)

    cast(Any, loop).add_reader = add


def _emptied(source: socket.socket, callback: Any) -> None:
    with contextlib.suppress(BlockingIOError):
        source.recv(_AT_ONCE)
    callback()
