"""One call on a connection: its answer or failure as a reply, and its end when the caller hangs up."""

import asyncio
import select
import socket
import traceback
from collections.abc import Awaitable

from google.protobuf.message import DecodeError

from sandbox.daemon.failures import Fault, fault_of, internal
from sandbox.daemon.frames import BrokenFrame
from sandbox.v1 import channel_pb2 as wire

CONNECTION_ERRORS = (BrokenFrame, DecodeError, ConnectionError)
"""They end the connection, without a reply."""


async def reply_of(answer: Awaitable[wire.Reply | None]) -> wire.Reply | None:
    """Return the reply of a call, or its failure as a reply; raises CONNECTION_ERRORS."""
    try:
        return await answer
    except Fault as fault:
        return wire.Reply(failure=fault.failure())
    except CONNECTION_ERRORS:
        raise
    except OSError as error:
        return wire.Reply(failure=fault_of(error, "the daemon").failure())
    except Exception as error:
        traceback.print_exc()
        message = f"the daemon failed: {type(error).__name__}: {error}; its log has more"
        return wire.Reply(failure=internal(message).failure())


class Hangups:
    """Cancels the task of a connection as soon as its peer hangs up, even while the connection is not read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # A poll set becomes readable itself when an event occurs in it.
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._hung_up)

    def watch(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks[connection.fileno()] = task
            self._epoll.register(connection.fileno(), select.EPOLLRDHUP)

    def forget(self, connection: socket.socket) -> None:
        """Stop watching; call before the connection is closed."""
        if self._tasks.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    def _hung_up(self) -> None:
        for fd, _ in self._epoll.poll(0):
            task = self._tasks.pop(fd, None)
            self._epoll.unregister(fd)
            if task is not None:
                task.cancel()
