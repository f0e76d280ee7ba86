"""Runs slow or unbounded work in a short-lived child process of the server, which can be killed, or in a thread.

A regular expression cannot be interrupted, and a huge tree would block the server's event loop. The forked child has
the server's identity, and so its protection and rights. It sends packets: a kind, and a serialized protobuf message,
which is a fragment to be merged into the reply or the failure of the work.
"""

from __future__ import annotations

import _thread
import asyncio
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from sandbox.daemon.failures import Fault, exhausted, fault_at, fault_of, internal, invalid_argument
from sandbox.v1 import channel_pb2 as wire

if TYPE_CHECKING:
    from typing import TypeVar

    _Value = TypeVar("_Value")

_FRAGMENT, _FAILURE, _END = b"+", b"-", b"."


Emit = Callable[[Any], None]  # takes a protobuf message


async def work_in_child(work: Callable[[Emit], object], reply: Message, timeout_s: float, path: str) -> bool:
    """Run `work` in a child and merge what it emits into `reply`; return False if it exceeded the time limit.

    Failures name `path`. Cancelling kills the child.
    """
    loop = asyncio.get_running_loop()
    output, child_output = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with output, child_output:
        with fault_at(path):
            pid = os.fork()
        if pid == 0:
            _run_child(work, child_output, path)
        child_output.close()
        output.setblocking(False)
        deadline_s = loop.time() + timeout_s
        timer = loop.call_at(deadline_s, output.shutdown, socket.SHUT_RD)  # the packets end
        try:
            # Far above the longest path, matching line and message.
            while (packet := await loop.sock_recv(output, 32 * 1024)) != _END:
                if not packet and loop.time() >= deadline_s:
                    return False
                if not packet:
                    raise exhausted(f"{path}: the search was killed, perhaps for memory")
                if packet.startswith(_FAILURE):
                    failure = wire.Failure.FromString(packet[1:])
                    raise Fault(failure.kind, failure.message, failure.errno)
                reply.MergeFromString(packet[1:])
            return True
        finally:
            timer.cancel()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # noqa: ASYNC222 - it was killed just now


def _run_child(work: Callable[[Emit], object], output: socket.socket, path: str) -> None:
    """Run in the child, without the server's event loop; never returns."""

    def emit(message: Message, kind: bytes = _FRAGMENT) -> None:
        output.send(kind + message.SerializeToString())

    def fail(fault: Fault) -> None:
        emit(fault.failure(), _FAILURE)

    try:
        # Finalizers of what the server has lost would close descriptors that are the child's own now.
        gc.freeze()
        output = socket.socket(fileno=os.dup2(output.detach(), 3))
        # The server's sockets, or connections would stay open as long as the child.
        os.closerange(4, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
        with open("/proc/self/statm", "rb") as file:
            mapped_bytes = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = mapped_bytes + 512 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))
        work(emit)
        output.send(_END)
    except Fault as fault:
        fail(fault)
    except OSError as error:
        fail(fault_of(error, path))
    except MemoryError:
        fail(invalid_argument(f"{path}: this needs too much memory; narrow it"))
    except BaseException as error:
        fail(internal(f"{path}: {type(error).__name__}: {error}"))
    finally:
        os._exit(0)


# Smaller files are handled directly: a thread would cost more than it saves.
HERE_LIMIT_BYTES = 8 * 1024 * 1024


async def work_in_thread(work: Callable[[], _Value], *, slow: bool = True) -> _Value:
    """Run one system call, in a thread if it is slow; return what `work` returns or raise what it raises.

    Freeing a file of many gigabytes takes the kernel seconds, and so does a rename over a file on ext4, which first
    writes the new bytes to disk. A child process could not do this with the server's descriptors. asyncio.to_thread
    would keep a pool of threads, and their memory, for good.
    """
    # Cancellation is deferred until `work` has ended, because it uses descriptors that the caller closes.
    if not slow:
        return work()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[_Value] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(ended.set_result, work())
        except BaseException as error:
            settle = partial(ended.set_exception, error)
        loop.call_soon_threadsafe(settle)

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return work()  # no thread left in the sandbox
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        ended.exception()  # retrieved, so that asyncio does not log it
        raise cancelled
    return ended.result()
