"""exec: one program, from its start to its outcome."""

import asyncio
import errno
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from sandbox.daemon.frames import FrameSocket, InputStream
from sandbox.daemon.limits.disk_watch import HOST_DISK, DiskWatch
from sandbox.daemon.limits.kernel import Cgroup
from sandbox.daemon.programs.exec_request import Program
from sandbox.daemon.programs.output import KeptOutput, LimitedOutput
from sandbox.daemon.programs.pipes import LingeringPipes, OutputPipe, ProgramPipes, Source, Writer, until_silent
from sandbox.daemon.programs.spill import Spill, SpillQuotas
from sandbox.daemon.supervisor.spawner import START_LIMIT_S, Process, Spawner
from sandbox.v1 import channel_pb2 as wire


class ProgramIO(ProgramPipes):
    """The pipes of one program. Past stream_limit_bytes they are closed and `past_limit` is done."""

    def __init__(self, program: Program, workspace: str, frames: FrameSocket, quotas: SpillQuotas) -> None:
        super().__init__()
        self.stdin: Writer | None = None
        self.past_limit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sender = OutputSender(frames, self._pipes) if program.stream else None
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
                self._pipes.append(OutputPipe(partial(self._take, stream)))
            if program.stdin:
                self.stdin = Writer(self._open_stdin())
        except OSError:
            self.close()
            raise

    def _take(self, stream: wire.OutputStream, buffer: bytearray, size: int) -> None:
        within = self._output.add(stream, buffer, size)
        if self.sender is not None:
            self.sender.add(stream, within)

    def _pass_limit(self) -> None:
        self.past_limit.set_result(None)
        for pipe in self._pipes:
            pipe.close()

    async def drain(self) -> None:
        """Read what an ended program has written, then wait until its pipes are closed or silent."""
        # What it wrote itself is never cut: a caller that does not read makes this wait, without a limit.
        if all(pipe.closed.done() for pipe in self._pipes):
            return
        await asyncio.wait([pipe.emptied() for pipe in self._pipes])
        await until_silent([pipe.closed for pipe in self._pipes], lambda: sum(pipe.pieces for pipe in self._pipes))

    def report(self, reply: wire.ExecReply) -> None:
        self._output.report(reply, streamed=self.sender is not None)

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()
        super().close()
        if self.stdin is not None:
            self.stdin.close()
        self._output.abandon()


# Reading from the program pauses above the first and resumes below the second; one last piece may come on top.
PAUSE_ABOVE_BYTES = 256 * 1024
RESUME_BELOW_BYTES = 128 * 1024
# Memory of a piece besides its bytes, so that a program that writes single bytes is paused in time too.
_PIECE_COST_BYTES = 160

Piece = tuple[wire.OutputStream, bytes | bytearray]


class OutputSender:
    """Sends Started and then pieces of output, no faster than the gateway reads: it pauses and resumes the sources."""

    def __init__(self, frames: FrameSocket, sources: Sequence[Source]) -> None:
        self._frames = frames
        self._sources = sources
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
        if last_stream == stream and len(last) + len(data) <= 64 * 1024:
            if isinstance(last, bytes):
                last = bytearray(last)
                self._unsent[-1] = (stream, last)
            last += data
            self._unsent_bytes += len(data)
        else:
            self._unsent.append((stream, data))
            self._unsent_bytes += len(data) + _PIECE_COST_BYTES
        self._more.set()
        if self._unsent_bytes > PAUSE_ABOVE_BYTES and not self._paused:
            self._paused = True
            for source in self._sources:
                source.pause()

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
                self._unsent_bytes -= len(data) + _PIECE_COST_BYTES
                if self._paused and self._unsent_bytes < RESUME_BELOW_BYTES:
                    self._paused = False
                    for source in self._sources:
                        source.resume()
            if self._over:
                return
            self._more.clear()
            await self._more.wait()


# Start failures that have an outcome of their own.
_START_OUTCOMES = {
    errno.EAGAIN: wire.OUTCOME_PIDS_LIMIT,
    errno.ENOMEM: wire.OUTCOME_OUT_OF_MEMORY,
    errno.ETIMEDOUT: wire.OUTCOME_TIMED_OUT,
}


class Executor:
    """Runs programs as the tool user."""

    def __init__(
        self, spawner: Spawner, cgroup: Cgroup, workspace: str, environment: dict[bytes, bytes], disk: DiskWatch
    ) -> None:
        self._spawner = spawner
        self._disk = disk
        self._cgroup = cgroup
        self._workspace = workspace
        self._environment = environment
        self._lingering = LingeringPipes()
        self._quotas = SpillQuotas()

    async def execute(self, request: wire.ExecRequest, frames: FrameSocket, given: InputStream) -> None:
        """Run the program and send the frames of the call. Cancelling kills everything it started."""
        program = Program(request, self._workspace, self._environment)
        io = ProgramIO(program, self._workspace, frames, self._quotas)
        feeding: asyncio.Task[None] | None = None
        try:
            if io.stdin is not None:
                feeding = _cancel_call_on_failure(asyncio.ensure_future(_feed(io.stdin, given)))
            await self._run(io, program, frames)
            if feeding is not None and io.stdin is not None:
                # Read the remaining input, which must not be taken for the next request.
                io.stdin.close()
                await feeding
        finally:
            if feeding is not None:
                feeding.cancel()
            io.close()

    async def _run(self, io: ProgramIO, program: Program, frames: FrameSocket) -> None:
        reply = wire.ExecReply()
        kills_before = self._cgroup.observe_kills()
        refused_before = self._cgroup.pids_refused()
        started_ns = time.monotonic_ns()
        try:
            limit_s = min(program.timeout_s or START_LIMIT_S, START_LIMIT_S)
            if why := await self._disk.refuse_start(limit_s):
                reply.outcome, reply.errno, reply.host_disk = wire.OUTCOME_DISK_LIMIT, errno.EDQUOT, why in HOST_DISK
                await frames.send(wire.Reply(exec=reply))
                return
            self._disk.begin()
            process = await self._spawner.start(
                program.argv, program.env, program.cwd, io.stdio(), limit_s=limit_s, file_rules=program.file_rules
            )
        except OSError as error:
            reply.outcome = _START_OUTCOMES.get(error.errno or 0, wire.OUTCOME_FAILED_TO_START)
            if reply.outcome != wire.OUTCOME_TIMED_OUT:
                reply.errno = error.errno or 0
            reply.pids_refused = max(self._cgroup.pids_refused() - refused_before, 0)
            await frames.send(wire.Reply(exec=reply))
            return
        try:
            reply.start_us = _us_since(started_ns)
            self._disk.begin()  # the watch may have ended while the start waited
            await self._see_through(process, io, program, reply, started_ns)
            if not reply.outcome:
                self._report_end(reply, process, kills_before)
            reply.pids_refused = max(self._cgroup.pids_refused() - refused_before, 0)
            reply.duration_us = _us_since(started_ns)
            io.report(reply)
            if io.sender is not None:
                await io.sender.finish()
            await frames.send(wire.Reply(exec=reply))
        except BaseException:
            await self._spawner.kill(process)
            raise
        finally:
            self._spawner.forget(process)

    async def _see_through(
        self, process: Process, io: ProgramIO, program: Program, reply: wire.ExecReply, started_ns: int
    ) -> None:
        """Wait for the end and read all output; set the outcome of a program that has to be killed."""
        io.close_tool_ends()
        if io.sender is not None:
            _cancel_call_on_failure(io.sender.start(process.started.result()))
        io.past_limit.add_done_callback(lambda _: process.wake())
        if not process.ended.done() and not io.past_limit.done():
            await process.changed(program.timeout_s)
        reply.end_us = _us_since(started_ns)
        if not process.ended.done() and not io.past_limit.done():
            reply.outcome = wire.OUTCOME_TIMED_OUT
            reply.remaining = await self._spawner.kill(process)
        await io.drain()
        if io.past_limit.done() and not reply.outcome:
            reply.outcome = wire.OUTCOME_OUTPUT_LIMIT
            reply.remaining = await self._spawner.kill(process)
        io.leave_to(self._lingering)

    def _report_end(self, reply: wire.ExecReply, process: Process, kills_before: int) -> None:
        status = process.ended.result()
        if os.WIFSIGNALED(status):
            reply.signal = os.WTERMSIG(status)
        else:
            reply.exit_code = os.WEXITSTATUS(status)
        reply.outcome = outcome_of(process, self._cgroup, kills_before)
        if reply.outcome == wire.OUTCOME_DISK_LIMIT:
            reply.host_disk = process.host_disk
        elif reply.outcome == wire.OUTCOME_OUT_OF_MEMORY and process.past_kernel:
            reply.errno = errno.ENFILE


def _us_since(started_ns: int) -> int:
    return (time.monotonic_ns() - started_ns) // 1000


def _cancel_call_on_failure(task: asyncio.Task[None]) -> asyncio.Task[None]:
    """Cancel the current call if `task` fails: the caller violated the protocol, or is gone."""
    call = asyncio.current_task()

    def end(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None and call is not None:
            call.cancel()

    task.add_done_callback(end)
    return task


async def _feed(stdin: Writer, given: InputStream) -> None:
    while (data := await given.read_piece()) is not None:
        await stdin.write_all(data)
    stdin.close()


def outcome_of(process: Process, cgroup: Cgroup, kills_before: int, *, killed_by_caller: bool = False) -> wire.Outcome:
    """Return the outcome of an ended process; `kills_before` is what observe_kills() returned at its start."""
    status = process.ended.result()
    signalled = os.WIFSIGNALED(status)
    # A shell exits with this status if the program it ran was killed.
    killed = os.WTERMSIG(status) == signal.SIGKILL if signalled else os.WEXITSTATUS(status) == 128 + signal.SIGKILL
    out_of_memory = cgroup.killed_since(kills_before)  # at every end, so that the next one is judged correctly
    if killed and process.past_disk:
        return wire.OUTCOME_DISK_LIMIT
    if killed and (process.past_kernel or (out_of_memory and not killed_by_caller)):
        return wire.OUTCOME_OUT_OF_MEMORY
    return wire.OUTCOME_SIGNALLED if signalled else wire.OUTCOME_EXITED
