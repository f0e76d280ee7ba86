"""The gateway's end of the channel to one sandbox: calls over a small pool of connections.

A call takes an idle connection or opens one, sends its Request, exchanges frames and returns the connection after the
final frame. Leaving it earlier, by an exception or cancellation, closes the connection, and the daemon kills what the
call started. A protocol violation marks the whole channel lost: the sandbox is never trusted again.

Frames are length-prefixed, and bounded in both directions. One that is too long, truncated or not a Reply is
DaemonLost; a buffer never contains more than one frame and one receive. Raw sockets save a task and a copy per call
compared to asyncio streams.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol, TypeVar

from google.protobuf.message import DecodeError

from sandbox.client import replies
from sandbox.daemon.frames import MAX_FRAME_BYTES, BrokenFrame, FrameSocket, field_head, only_field, send_around
from sandbox.daemon.relay import SEND_BUFFER_BYTES
from sandbox.errors import DaemonLost
from sandbox.v1 import channel_pb2 as pb

PROTOCOL_VERSION = 1
_STREAM_MEMBERS = frozenset({"started", "output", "chunk", "presence", "retire"})

_Value = TypeVar("_Value")
_Frame = TypeVar("_Frame", bytes, memoryview)


class HungUp(DaemonLost):
    """A connection ended between frames or broke; the daemon may have done that, or the network between."""


class Address(Protocol):
    """Where a daemon is: a Unix socket (unix_address.py), or a relay (tls_address.py)."""

    async def open(self) -> socket.socket:
        """Return a new connection that does not block, a Unix socket.

        Raises OSError, while nothing listens FileNotFoundError or ConnectionRefusedError; DaemonLost on a trap.
        """

    def close(self) -> None:
        """Give up what the address keeps; it may be called twice."""


class Connection:
    """A connected socket that carries one call at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._frames = FrameSocket(connected)
        self._send_buffer_grown = False

    async def send(self, message: pb.Request | pb.Input) -> None:
        rest = self.send_at_once(message)
        if rest:
            await self.send_rest(rest)

    def send_at_once(self, message: pb.Request | pb.Input) -> memoryview:
        """Send what fits into the socket's buffer and return the rest, for send_rest()."""
        payload = message.SerializeToString()
        if len(payload) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
        frame = memoryview(len(payload).to_bytes(4, "big") + payload)
        try:
            return frame[self._socket.send(frame) :]
        except BlockingIOError:
            return frame
        except OSError as error:
            raise _closed(error) from error

    async def send_rest(self, rest: memoryview) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, rest)
        except OSError as error:
            raise _closed(error) from error

    async def send_data(self, data: memoryview) -> None:
        """Send Input(data=...), 1 MiB at most, without a copy of the bytes."""
        if not self._send_buffer_grown:
            # The default of 208 KiB would split a frame into several round trips of both event loops.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._send_buffer_grown = True
        try:
            await send_around(self._socket, field_head(pb.Input.DATA_FIELD_NUMBER, len(data)), data)
        except OSError as error:
            raise _closed(error) from error

    async def receive(self) -> pb.Reply:
        """Return the next frame; raises DaemonLost when there is none or it is malformed."""
        return _reply(await self._received(self._frames.read()))

    async def receive_piece(self) -> bytes | pb.Reply:
        """Return the bytes of the next frame if it is a Chunk as our daemon encodes it, else the frame as receive()."""
        frame = await self._received(self._frames.read_view())
        data = only_field(frame, pb.Reply.CHUNK_FIELD_NUMBER, pb.Chunk.DATA_FIELD_NUMBER)
        if data is not None:
            return bytes(data)
        self._frames.drop_buffer()
        return _reply(bytes(frame))

    async def _received(self, reading: Awaitable[_Frame | None]) -> _Frame:
        try:
            frame = await reading
        except BrokenFrame as error:
            raise DaemonLost(f"the sandbox daemon sent {error}") from error
        except OSError as error:
            raise HungUp(f"the connection to the sandbox daemon broke ({error.strerror or error})") from error
        if frame is None:
            raise HungUp("the sandbox daemon closed the connection before it answered")
        return frame

    async def receive_exactly(self) -> pb.Reply:
        """Return the next frame as receive(), without a byte of what follows it: that is a tunnel's."""
        head = await self._received(self._exactly(4))
        size = int.from_bytes(head, "big")
        if size > MAX_FRAME_BYTES:
            raise DaemonLost(f"the sandbox daemon sent a frame of {size} bytes; {MAX_FRAME_BYTES} are allowed")
        return _reply(await self._received(self._exactly(size)))

    async def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            await self._frames.step()
            piece = await asyncio.get_running_loop().sock_recv(self._socket, size - len(data))
            if not piece:
                return None
            data += piece
        return bytes(data)

    def detach(self) -> socket.socket:
        """Return the socket, which is a tunnel and no connection of the channel any more."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        return self._socket

    def idle(self) -> bool:
        """Return whether the connection is open and silent, as it must be between calls."""
        if self._frames.buffered_bytes:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # Readable between calls: the daemon hung up or sends unsolicited data.
        return False

    def close(self) -> None:
        """Close; a call in flight on it is cancelled by the daemon. Safe to call twice."""
        self._socket.close()


def _closed(error: OSError) -> DaemonLost:
    return HungUp(f"the sandbox daemon closed the connection ({error.strerror or error})")


def _reply(frame: bytes) -> pb.Reply:
    try:
        return pb.Reply.FromString(frame)
    except DecodeError as error:
        raise DaemonLost("the sandbox daemon sent a frame that is no Reply") from error


class Call:
    """One call in flight. `finished` turns true with the final frame."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.finished = False
        # Set when the daemon answered before it read all input: the rest of it is still in the connection.
        self.spoiled = False

    async def send(self, message: pb.Input, *, timeout_s: float) -> None:
        """Send an Input frame; raises DaemonLost when the daemon does not read it in time."""
        await _in_time(self.connection.send(message), timeout_s, "took no input for")

    async def send_data(self, data: memoryview, *, timeout_s: float) -> None:
        """Send the bytes of an Input frame, 1 MiB at most, without a copy; raises as send()."""
        await _in_time(self.connection.send_data(data), timeout_s, "took no input for")

    async def receive_piece(self, *, timeout_s: float) -> bytes | tuple[str, pb.Reply]:
        """Return the bytes of a Chunk, or what receive() returns for any other Reply; raises as receive()."""
        piece = await _in_time(self.connection.receive_piece(), timeout_s, "did not answer within")
        return piece if isinstance(piece, bytes) else self._noted(piece)

    async def receive(self, *, timeout_s: float | None) -> tuple[str, pb.Reply]:
        """Return the next Reply, after the name of its member; raises DaemonLost when none arrives in time."""
        return self._noted(await _in_time(self.connection.receive(), timeout_s, "did not answer within"))

    async def exchange(
        self,
        send: Coroutine[Any, Any, None],
        receive: Coroutine[Any, Any, _Value],
        *,
        answer_timeout_s: float | None = None,
    ) -> _Value:
        """Send input while receiving, as the daemon may answer before it read everything; the rest is then dropped.

        An exception of `send` ends the call. Raises DaemonLost without an answer `answer_timeout_s` after the input.
        """
        sending, receiving = asyncio.create_task(send), asyncio.create_task(receive)
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not receiving.done():
                sending.result()
                if not (await asyncio.wait({receiving}, timeout=answer_timeout_s))[0]:
                    raise DaemonLost("the sandbox daemon did not finish a write")
            return await receiving
        finally:
            # Unless the input was read to its end, the rest of it is still in the connection.
            self.spoiled = not sending.done() or sending.cancelled() or sending.exception() is not None
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    def _noted(self, reply: pb.Reply) -> tuple[str, pb.Reply]:
        member = reply.WhichOneof("reply")
        if member is None:
            raise DaemonLost("the sandbox daemon sent an empty reply")
        if member not in _STREAM_MEMBERS:
            self.finished = True
        return member, reply


class Channel:
    """Calls to the daemon at `address`, which is the channel's alone. Keeps up to eight idle connections."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._closed = False
        self.lost: DaemonLost | None = None

    async def connect(self) -> None:
        """Open the first connection; raises OSError while the daemon does not listen yet, DaemonLost on a trap."""
        self._idle.append(await self._open())

    @asynccontextmanager
    async def call(self, request: pb.Request) -> AsyncIterator[Call]:
        """Open a call; raises DaemonLost when the daemon is or becomes unreachable or violates the protocol."""
        call = await self._begin(request)
        try:
            yield call
        except DaemonLost as error:
            self.mark_lost(error)
            raise
        finally:
            self._end(call)

    async def query(
        self,
        request: pb.Request,
        member: str,
        read: Callable[[Any], _Value],
        *,
        timeout_s: float,
        fail: Callable[[pb.Failure], NoReturn] = replies.raise_failure,
    ) -> _Value:
        """Make a call with a single reply and return what `read` makes of its member; `fail` raises failures."""
        call = await self._begin(request)  # not call(): most calls come through here, and a context manager costs
        try:
            got, reply = await call.receive(timeout_s=timeout_s)
            if got == "failure":
                fail(reply.failure)
            if got != member:
                raise DaemonLost(f"the sandbox daemon answered {got} where {member} was due")
            return read(getattr(reply, member))
        except DaemonLost as error:
            self.mark_lost(error)
            raise
        finally:
            self._end(call)

    async def tunnel(self, request: pb.Request, *, timeout_s: float | None) -> socket.socket:
        """Make a call that answers with a tunnel and return its socket, which does not block; the caller closes it.

        Raises SandboxError subclasses: what the daemon fails with, and DaemonLost, also without an answer in time.
        """
        call = await self._begin(request)
        detached = False
        try:
            async with asyncio.timeout(timeout_s):
                reply = await call.connection.receive_exactly()
            member = reply.WhichOneof("reply")
            if member == "failure":
                call.finished = True
                replies.raise_failure(reply.failure)
            if member != "tunnel":
                raise DaemonLost(f"the sandbox daemon answered {member} where a tunnel was due")
            detached = True
            return call.connection.detach()
        except TimeoutError as error:
            lost = DaemonLost(f"the sandbox daemon did not answer within {timeout_s:.1f} s")
            self.mark_lost(lost)
            raise lost from error
        except DaemonLost as error:
            self.mark_lost(error)
            raise
        finally:
            if not detached:
                self._end(call)

    async def hello(self, *, timeout_s: float) -> pb.HelloReply:
        """Perform the handshake; raises DaemonLost when the peer is not a daemon of this protocol version."""

        def refuse(_failure: pb.Failure | None = None) -> NoReturn:
            raise DaemonLost(
                f"the sandbox daemon does not speak protocol version {PROTOCOL_VERSION}; rebuild the runtime image"
            )

        def checked(reply: pb.HelloReply) -> pb.HelloReply:
            return reply if reply.protocol_version == PROTOCOL_VERSION else refuse()

        request = pb.Request(hello=pb.HelloRequest(protocol_version=PROTOCOL_VERSION))
        return await self.query(request, "hello", checked, timeout_s=timeout_s, fail=refuse)

    def mark_lost(self, error: DaemonLost) -> None:
        """Refuse every later call with the first error."""
        if self.lost is None:
            self.lost = error
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Close idle connections; calls in flight end with their own connection."""
        self._closed = True
        self.mark_lost(DaemonLost("the sandbox was removed"))
        self._address.close()

    async def _begin(self, request: pb.Request) -> Call:
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))
        connection = None
        try:
            connection = await self._take()
            rest = connection.send_at_once(request)
            if rest:
                await _in_time(connection.send_rest(rest), 10.0, "took no request for")
            return Call(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, DaemonLost):
                self.mark_lost(error)
            raise

    def _end(self, call: Call) -> None:
        reusable = call.finished and not call.spoiled and self.lost is None
        if reusable and len(self._idle) < 8:
            self._idle.append(call.connection)
        else:
            call.connection.close()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.idle():
                return connection
            connection.close()
        try:
            return await self._open()
        except OSError as error:
            raise DaemonLost(f"the sandbox daemon is gone ({error.strerror or error})") from error

    async def _open(self) -> Connection:
        if self._closed:
            raise DaemonLost("the sandbox was removed")
        return Connection(await self._address.open())


async def _in_time(work: Awaitable[_Value], timeout_s: float | None, late: str) -> _Value:
    if timeout_s is None:
        return await work
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError as error:
        raise DaemonLost(f"the sandbox daemon {late} {timeout_s:.1f} s") from error
