"""The pipes of one program, and where its output goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandbox.daemon.frames import FrameSocket
from sandbox.daemon.programs.exec_request import Program
from sandbox.daemon.programs.output import KeptOutput
from sandbox.daemon.programs.output_sender import OutputSender
from sandbox.daemon.programs.pipes import InputPipe, LingeringPipes, OutputPipe
from sandbox.daemon.programs.spill import Spill
from sandbox.daemon.programs.spill_quota import SpillQuotas
from sandbox.daemon.programs.stream_limit import LimitedOutput
from sandbox.v1 import channel_pb2 as wire

# A background process may keep the pipes open. The call of a program that is over ends when they were silent so long.
IDLE_S = 0.05
# And in any case after so long, whatever a background process goes on writing.
DRAIN_LIMIT_S = 0.5


class ProgramIO:
    """The pipes of one program. Past stream_limit_bytes they are closed and `past_limit` is done."""

    def __init__(self, program: Program, workspace: str, frames: FrameSocket, quotas: SpillQuotas) -> None:
        self.stdin: InputPipe | None = None
        self.past_limit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pipes: list[OutputPipe] = []
        self._streamed = program.stream
        self._sender = OutputSender(frames, self._hold, self._release) if program.stream else None
        limit = program.limit
        self._output: KeptOutput | LimitedOutput
        if program.stream_limit_bytes:
            self._output = LimitedOutput(program.stream_limit_bytes, self._pass_limit)
        else:
            self._output = KeptOutput(
                limit,
                lambda: Spill(
                    limit.spill_path,
                    limit.spill_limit_bytes,
                    workspace,
                    quotas=quotas,
                    quota_bytes=limit.spill_quota_bytes,
                ),
            )
        try:
            for stream in (wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR):
                self._pipes.append(OutputPipe(self._taker(stream)))
            if program.stdin:
                self.stdin = InputPipe()
        except OSError:
            self.close()
            raise

    def _taker(self, stream: wire.OutputStream) -> Callable[[bytearray, int], None]:
        add, sender = self._output.add, self._sender

        def take(buffer: bytearray, size: int) -> None:
            within = add(stream, buffer, size)
            if sender is not None:
                sender.add(stream, within)

        return take

    def _hold(self) -> None:
        for pipe in self._pipes:
            pipe.pause()

    def _release(self) -> None:
        for pipe in self._pipes:
            pipe.resume()

    def _pass_limit(self) -> None:
        self.past_limit.set_result(None)
        for pipe in self._pipes:
            pipe.close()

    def stdio(self) -> list[int]:
        """Return what the program gets: stdout, stderr and perhaps stdin."""
        ends = [pipe.write_fd for pipe in self._pipes]
        return [*ends, self.stdin.read_fd] if self.stdin is not None else ends

    def close_tool_ends(self) -> None:
        """Close this process' copies of what the program got."""
        for pipe in self._pipes:
            pipe.close_write_end()
        if self.stdin is not None:
            self.stdin.close_read_end()

    def start_streaming(self, pid: int) -> asyncio.Task[None] | None:
        """Send Started, then Output as it arrives, when that was asked for; the task fails when the caller is gone."""
        return self._sender.start(pid) if self._sender is not None else None

    async def finish_streaming(self) -> None:
        """Send what is left; waits while the caller does not read."""
        if self._sender is not None:
            await self._sender.finish()

    async def drain(self) -> None:
        """Take what a program that is over has written, then wait until its pipes end or were silent long enough.

        What it wrote itself is never cut short: a caller that does not read makes this wait, without a limit.
        """
        if all(pipe.closed.done() for pipe in self._pipes):
            return
        await asyncio.wait([pipe.take_waiting() for pipe in self._pipes])
        loop = asyncio.get_running_loop()
        limit = loop.time() + DRAIN_LIMIT_S
        while (open_pipes := [pipe for pipe in self._pipes if not pipe.closed.done()]) and loop.time() < limit:
            pieces = sum(pipe.pieces for pipe in open_pipes)
            await asyncio.wait([pipe.closed for pipe in open_pipes], timeout=IDLE_S)
            still_open = not any(pipe.closed.done() for pipe in open_pipes)
            if still_open and pieces == sum(pipe.pieces for pipe in open_pipes):
                return

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Give up pipes that background processes still hold."""
        for pipe in self._pipes:
            pipe.leave_to(lingering)

    def report(self, reply: wire.ExecReply) -> None:
        """Write into the reply what is known of the output."""
        self._output.report(reply, streamed=self._streamed)

    def close(self) -> None:
        """Let go of everything; harmless when it is gone already."""
        if self._sender is not None:
            self._sender.close()
        for pipe in self._pipes:
            pipe.close()
        if self.stdin is not None:
            self.stdin.close()
        self._output.abandon()
