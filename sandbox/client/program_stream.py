"""One call of exec with streams: input goes in while output comes out, and neither waits for the other.

Memory is one frame of output and one piece of input, however much flows: while `on_output` is awaited nothing is read,
the socket fills, and the program is held back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable

from sandbox.client import replies
from sandbox.client.channel import Call, Channel
from sandbox.errors import DaemonLost
from sandbox.process import OnProgramOutput
from sandbox.v1 import channel_pb2 as pb

_INPUT_BYTES = 256 * 1024


class CallersFault(Exception):
    """What the caller's own stdin or on_output raised, kept apart from what the sandbox did."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class ProgramStream:
    """The streams of one program; `patience_s` bounds the time that the daemon is waited for in all."""

    def __init__(
        self,
        request: pb.ExecRequest,
        *,
        stdin: AsyncIterable[bytes] | None,
        on_output: OnProgramOutput,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._stdin = stdin
        self._on_output = on_output
        self._patience_s = patience_s
        self._clock = clock
        self.output_bytes = 0

    async def run(self, channel: Channel) -> pb.ExecReply:
        """Run the program; raises DaemonLost, a FileError that the daemon answered with, or CallersFault."""
        async with channel.call(pb.Request(exec=self._request)) as call:
            reply = await (self._receive(call) if self._stdin is None else self._exchange(call, self._stdin))
            if reply.output or reply.tail or reply.HasField("evicted"):
                raise DaemonLost("the sandbox daemon kept output that was to be streamed")
            lost_bytes = replies.count(reply.output_bytes) - self.output_bytes
            if lost_bytes < 0 or (lost_bytes and reply.outcome != pb.OUTCOME_OUTPUT_LIMIT):
                raise DaemonLost(
                    f"the sandbox daemon sent {self.output_bytes} bytes of output and counts {reply.output_bytes}"
                )
            return reply

    async def _exchange(self, call: Call, stdin: AsyncIterable[bytes]) -> pb.ExecReply:
        feeding = asyncio.create_task(self._feed(call, stdin))
        receiving = asyncio.create_task(self._receive(call))
        try:
            await asyncio.wait({feeding, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and not receiving.done():
                # Raises what the caller's stdin raised, and the call ends with it.
                feeding.result()
            # Once the program is over nobody wants what is left of the input.
            return await receiving
        finally:
            # Unless it was taken to its end, the connection may still have input in it.
            call.spoiled = not (feeding.done() and not feeding.cancelled() and feeding.exception() is None)
            for task in (feeding, receiving):
                task.cancel()
            await asyncio.gather(feeding, receiving, return_exceptions=True)

    async def _receive(self, call: Call) -> pb.ExecReply:
        started = False
        waited_s = 0.0
        while True:
            # Only the waiting counts: a caller that takes its time with the output does not make the daemon late.
            asked_s = self._clock()
            if waited_s >= self._patience_s:
                raise DaemonLost(f"the sandbox daemon did not end a program within {self._patience_s:.1f} s")
            member, reply = await call.receive(timeout_s=self._patience_s - waited_s)
            waited_s += self._clock() - asked_s
            if member == "exec":
                return reply.exec
            if member == "failure":
                replies.raise_failure(reply.failure)
            if member == "started" and not started:
                started = True
            elif member == "output":
                await self._pass_on(reply.output)
            else:
                raise DaemonLost(f"the sandbox daemon sent {member} out of turn")

    async def _pass_on(self, output: pb.Output) -> None:
        stream = replies.output_stream(output)
        self.output_bytes += len(output.data)
        if self.output_bytes > self._request.stream_limit_bytes:
            raise DaemonLost("the sandbox daemon sent more output than was asked for")
        try:
            await self._on_output(stream, output.data)
        except Exception as error:  # whatever the caller's own raises, told apart from the daemon's
            raise CallersFault(error) from error

    async def _feed(self, call: Call, stdin: AsyncIterable[bytes]) -> None:
        async for piece in _pieces(stdin):
            await self._send(call, pb.Input(data=piece))
        await self._send(call, pb.Input(end=True))

    async def _send(self, call: Call, message: pb.Input) -> None:
        try:
            await call.send(message, timeout_s=self._patience_s)
        except DaemonLost:
            # The reply, or that there is none, says what happened; until then this is only input that nobody takes.
            await asyncio.Event().wait()


async def _pieces(stdin: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    try:
        async for block in stdin:
            view = memoryview(block)
            for start in range(0, len(view), _INPUT_BYTES):
                yield bytes(view[start : start + _INPUT_BYTES])
    except Exception as error:  # as above
        raise CallersFault(error) from error
