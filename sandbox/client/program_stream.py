"""The exchange of one exec call with streams: input and output flow at the same time, and neither waits for the other.

Memory is one frame of output and one piece of input: while `on_output` is awaited nothing is read, the socket fills up,
and the program blocks.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from sandbox.client import replies
from sandbox.client.channel import Call, Channel
from sandbox.errors import DaemonLost
from sandbox.protocols import OnProgramOutput
from sandbox.v1 import channel_pb2 as pb

_INPUT_BYTES = 256 * 1024


class CallersFault(Exception):
    """An exception of the caller's own stdin or on_output, kept apart from those of the sandbox."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def receive_exec(
    call: Call, on_output: Callable[[pb.Output], Awaitable[None]] | None, *, limit_s: float, clock: Callable[[], float]
) -> pb.ExecReply:
    """Receive until the final reply, waiting `limit_s` in all: a slow `on_output` does not make the daemon late."""
    started = False
    waited_s = 0.0
    while True:
        if waited_s >= limit_s:
            raise DaemonLost(f"the sandbox daemon did not answer within {limit_s:.1f} s")
        before_s = clock()
        member, reply = await call.receive(timeout_s=limit_s - waited_s)
        waited_s += clock() - before_s
        if member == "exec":
            return reply.exec
        if member == "failure":
            replies.raise_failure(reply.failure)
        if member == "started" and not started:
            started = True
        elif member == "output" and on_output is not None:
            await on_output(reply.output)
        else:
            raise DaemonLost(f"the sandbox daemon sent {member} out of turn")


@dataclass
class ProgramStream:
    """The streams of one program; `limit_s` bounds the time spent waiting for the daemon."""

    request: pb.ExecRequest
    stdin: AsyncIterable[bytes] | None
    on_output: OnProgramOutput
    limit_s: float
    clock: Callable[[], float]
    output_bytes: int = field(default=0, init=False)

    async def run(self, channel: Channel) -> pb.ExecReply:
        """Run the program; raises DaemonLost, a FileError that the daemon answered with, or CallersFault."""
        async with channel.call(pb.Request(exec=self.request)) as call:
            receive = receive_exec(call, self._pass_on, limit_s=self.limit_s, clock=self.clock)
            reply = await (receive if self.stdin is None else call.exchange(self._feed(call, self.stdin), receive))
            if reply.output or reply.tail or reply.HasField("evicted"):
                raise DaemonLost("the sandbox daemon kept output that was to be streamed")
            lost_bytes = replies.count(reply.output_bytes) - self.output_bytes
            if lost_bytes < 0 or (lost_bytes and reply.outcome != pb.OUTCOME_OUTPUT_LIMIT):
                raise DaemonLost(
                    f"the sandbox daemon sent {self.output_bytes} bytes of output and counts {reply.output_bytes}"
                )
            return reply

    async def _pass_on(self, output: pb.Output) -> None:
        stream = replies.output_stream(output)
        self.output_bytes += len(output.data)
        if self.output_bytes > self.request.stream_limit_bytes:
            raise DaemonLost("the sandbox daemon sent more output than was asked for")
        try:
            await self.on_output(stream, output.data)
        except Exception as error:
            raise CallersFault(error) from error

    async def _feed(self, call: Call, stdin: AsyncIterable[bytes]) -> None:
        async for piece in _pieces(stdin):
            await self._send(call, pb.Input(data=piece))
        await self._send(call, pb.Input(end=True))

    async def _send(self, call: Call, message: pb.Input) -> None:
        try:
            await call.send(message, timeout_s=self.limit_s)
        except DaemonLost:
            # The reply, or its absence, says what happened; until then this is only input that is not read.
            await asyncio.Event().wait()


async def _pieces(stdin: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    try:
        async for block in stdin:
            view = memoryview(block)
            for start in range(0, len(view), _INPUT_BYTES):
                yield bytes(view[start : start + _INPUT_BYTES])
    except Exception as error:
        raise CallersFault(error) from error
