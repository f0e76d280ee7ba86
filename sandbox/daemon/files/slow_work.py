"""Runs slow or unbounded work in a short-lived child process of the server, which can be killed, or in a thread.

A regular expression cannot be interrupted, and a huge tree would block the server's event loop. The forked child has
the server's identity, and so its protection and rights. It sends fragments through a pipe: serialized protobuf messages
that are merged into the reply.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import resource
import signal
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from sandbox.daemon.failures import Fault, fault_of, invalid_argument
from sandbox.v1 import channel_pb2 as wire

if TYPE_CHECKING:
    from typing import TypeVar

    _Value = TypeVar("_Value")

_HEADER = struct.Struct("!BI")
_FRAGMENT, _FAILURE = 1, 2
_FRAGMENT_LIMIT_BYTES = 2 * 1024 * 1024
_CHILD_MEMORY_BYTES = 512 * 1024 * 1024
_READ_BYTES = 256 * 1024


Emit = Callable[[Any], None]  # takes a protobuf message


async def work_in_child(work: Callable[[Emit], None], reply: Message, timeout_s: float, path: str) -> bool:
    """Run `work` in a child and merge what it emits into `reply`; return False if it exceeded the time limit.

    Failures name `path`. Cancelling kills the child.
    """
    loop = asyncio.get_running_loop()
    output, child_output = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(output)
        os.close(child_output)
        raise fault_of(error, path) from None
    if pid == 0:
        _run_child(work, child_output, path)
    os.close(child_output)
    os.set_blocking(output, False)
    deadline = loop.time() + timeout_s
    data = bytearray()
    try:
        while True:
            piece = await _read(loop, output, deadline)
            if piece is None:
                return False
            if not piece:
                # Completed work sends an empty fragment, so this child was killed.
                raise Fault(wire.FAILURE_KIND_EXHAUSTED, f"{path}: the search was killed, perhaps for memory")
            data += piece
            if _merge(data, reply):
                return True
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it was killed just now
        os.close(output)


async def _read(loop: asyncio.AbstractEventLoop, fd: int, deadline: float) -> bytes | None:
    """Return the next bytes, b"" at the end, None at the deadline."""
    while True:
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            pass
        ready = loop.create_future()
        timer = loop.call_at(deadline, _settle, ready, False)
        loop.add_reader(fd, _settle, ready, True)
        try:
            if not await ready:
                return None
        finally:
            timer.cancel()
            loop.remove_reader(fd)


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def _merge(data: bytearray, reply: Message) -> bool:
    """Consume the complete fragments in `data`; return True after the empty one that ends the work."""
    start = 0
    while len(data) - start >= _HEADER.size:
        kind, size = _HEADER.unpack_from(data, start)
        if size > _FRAGMENT_LIMIT_BYTES:
            raise Fault(wire.FAILURE_KIND_INTERNAL, "the search sent more than it may")
        if len(data) - start - _HEADER.size < size:
            break
        body = bytes(data[start + _HEADER.size : start + _HEADER.size + size])
        start += _HEADER.size + size
        if kind == _FAILURE:
            failure = wire.Failure.FromString(body)
            raise Fault(failure.kind, failure.message, failure.errno)
        if not size:
            return True
        reply.MergeFromString(body)
    del data[:start]
    return False


def _run_child(work: Callable[[Emit], None], output: int, path: str) -> None:
    """Run in the child, without the server's event loop; never returns."""

    def send(kind: int, body: bytes) -> None:
        view = memoryview(_HEADER.pack(kind, len(body)) + body)
        while view:
            view = view[os.write(output, view) :]

    def emit(message: Message) -> None:
        body = message.SerializeToString()
        if body:
            send(_FRAGMENT, body)

    try:
        output = os.dup2(output, 3)
        # The server's sockets, or connections would stay open as long as the child.
        os.closerange(4, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
        _limit_memory()
        work(emit)
        send(_FRAGMENT, b"")
    except Fault as fault:
        send(_FAILURE, fault.failure().SerializeToString())
    except OSError as error:
        send(_FAILURE, fault_of(error, path).failure().SerializeToString())
    except MemoryError:
        send(_FAILURE, invalid_argument(f"{path}: this needs too much memory; narrow it").failure().SerializeToString())
    except BaseException as error:
        text = f"{path}: {type(error).__name__}: {error}"
        send(_FAILURE, Fault(wire.FAILURE_KIND_INTERNAL, text).failure().SerializeToString())
    finally:
        os._exit(0)


def _limit_memory() -> None:
    with open("/proc/self/statm", "rb") as file:
        mapped_bytes = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped_bytes + _CHILD_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


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
    done = asyncio.Event()
    outcome: list[_Value] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)
        loop.call_soon_threadsafe(done.set)

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return work()  # no thread left in the sandbox
    cancelled: asyncio.CancelledError | None = None
    while not done.is_set():
        try:
            await done.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if failure:
        raise failure[0]
    return outcome[0]
