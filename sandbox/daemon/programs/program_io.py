"""The pipes of one program, and where its output goes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sandbox.daemon.frames import FrameSocket
from sandbox.daemon.programs.exec_request import Program
from sandbox.daemon.programs.output import KeptOutput, LimitedOutput
from sandbox.daemon.programs.pipes import OutputPipe, ProgramPipes, Writer, until_silent
from sandbox.daemon.programs.spill import Spill
from sandbox.daemon.programs.spill_quota import SpillQuotas
from sandbox.v1 import channel_pb2 as wire


class ProgramIO(ProgramPipes):
    """The pipes of one program. Past stream_limit_bytes they are closed and `past_limit` is done."""

    def __init__(self, program: Program, workspace: str, frames: FrameSocket, quotas: SpillQuotas) -> None:
        super().__init__()
        self.stdin: Writer | None = None
        self.past_limit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sender = OutputSender(frames, self._pause, self._resume) if program.stream else None
        limit = program.limit

        def open_spill() -> Spill:
            quota_bytes = limit.spill_quota_bytes
            return Spill(limit.spill_path, limit.spill_limit_bytes, workspace, quotas=quotas, quota_bytes=quota_bytes)

        self._output: KeptOutput | LimitedOutput
        if program.stream_limit_bytes:
            self._output = LimitedOutput(program.stream_limit_bytes, self._pass_limit)
        else:
            self._output = KeptOutput(limit, open_spill)
        try:
            for stream in (wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR):
                self._pipes.append(OutputPipe(self._taker(stream)))
            if program.stdin:
                self.stdin = Writer(self._open_stdin())
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

    def _pause(self) -> None:
        for pipe in self._pipes:
            pipe.pause()

    def _resume(self) -> None:
        for pipe in self._pipes:
            pipe.resume()

    def _pass_limit(self) -> None:
        self.past_limit.set_result(None)
        for pipe in self._pipes:
            pipe.close()

    def start_streaming(self, pid: int) -> asyncio.Task[None] | None:
        """Send Started, then Output as it arrives, if streaming; the task fails when the caller is gone."""
        return self._sender.start(pid) if self._sender is not None else None

    async def finish_streaming(self) -> None:
        if self._sender is not None:
            await self._sender.finish()

    async def drain(self) -> None:
        """Read what an ended program has written, then wait until its pipes are closed or silent.

        What it wrote itself is never cut: a caller that does not read makes this wait, without a limit.
        """
        if all(pipe.closed.done() for pipe in self._pipes):
            return
        await asyncio.wait([pipe.emptied() for pipe in self._pipes])
        await until_silent([pipe.closed for pipe in self._pipes], lambda: sum(pipe.pieces for pipe in self._pipes))

    def report(self, reply: wire.ExecReply) -> None:
        self._output.report(reply, streamed=self._sender is not None)

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        super().close()
        if self.stdin is not None:
            self.stdin.close()
        self._output.abandon()


# Reading from the program pauses above the first and resumes below the second; one last piece may come on top.
PAUSE_ABOVE_BYTES = 256 * 1024
RESUME_BELOW_BYTES = 128 * 1024
# Memory of a piece besides its bytes, so that a program that writes single bytes is paused in time too.
_PIECE_COST_BYTES = 160
_JOIN_BELOW_BYTES = 64 * 1024

Piece = tuple[wire.OutputStream, bytes | bytearray]


class OutputSender:
    """Sends Started and then pieces of output, in order. `pause` and `resume` control the reading of output."""

    def __init__(self, frames: FrameSocket, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._frames = frames
        self._pause = pause
        self._resume = resume
        self._unsent: deque[Piece] = deque()
        self._unsent_bytes = 0
        self._paused = False
        self._more = asyncio.Event()
        self._over = False
        self._sending: asyncio.Task[None] | None = None

    def start(self, pid: int) -> asyncio.Task[None]:
        """Start sending; the task fails when the caller is gone."""
        self._sending = asyncio.ensure_future(self._send_all(pid))
        return self._sending

    def add(self, stream: wire.OutputStream, data: bytes) -> None:
        if not data:
            return
        last_stream, last = self._unsent[-1] if self._unsent else (None, b"")
        if last_stream == stream and len(last) + len(data) <= _JOIN_BELOW_BYTES:
            if isinstance(last, bytes):
                last = bytearray(last)
                self._unsent[-1] = (stream, last)
            last += data
            self._unsent_bytes += len(data)
        else:
            self._unsent.append((stream, data))
            self._unsent_bytes += _cost_bytes(data)
        self._more.set()
        if self._unsent_bytes > PAUSE_ABOVE_BYTES and not self._paused:
            self._paused = True
            self._pause()

    async def finish(self) -> None:
        """Send the rest; waits while the caller does not read."""
        if self._sending is not None:
            self._over = True
            self._more.set()
            await self._sending

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self, pid: int) -> None:
        await self._frames.send(wire.Reply(started=wire.Started(pid=pid)))
        while True:
            while self._unsent:
                stream, data = self._unsent.popleft()
                await self._frames.send(wire.Reply(output={"stream": stream, "data": bytes(data)}))
                self._unsent_bytes -= _cost_bytes(data)
                if self._paused and self._unsent_bytes < RESUME_BELOW_BYTES:
                    self._paused = False
                    self._resume()
            if self._over:
                return
            self._more.clear()
            await self._more.wait()


def _cost_bytes(data: bytes | bytearray) -> int:
    return len(data) + _PIECE_COST_BYTES
