"""exec: one program, from its start to its outcome."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable

from sandbox.daemon.cgroup import Cgroup
from sandbox.daemon.exec_request import Program, check_program
from sandbox.daemon.frames import FrameSocket
from sandbox.daemon.input_stream import InputStream
from sandbox.daemon.output import KeptOutput
from sandbox.daemon.pipes import InputPipe, LingeringPipes, OutputPipe
from sandbox.daemon.spawner import Process, Spawner
from sandbox.daemon.spill import Spill
from sandbox.v1 import channel_pb2 as wire

# A background process may keep the pipes open. The call of a program that is over ends when they were silent so long.
IDLE_S = 0.05
# And in any case after so long, whatever a background process goes on writing.
DRAIN_LIMIT_S = 0.5

_SHELL_SIGKILL_STATUS = 128 + signal.SIGKILL


class Executor:
    """Runs programs as the tool user."""

    def __init__(self, spawner: Spawner, cgroup: Cgroup, workspace: str, environment: dict[bytes, bytes]) -> None:
        self._spawner = spawner
        self._cgroup = cgroup
        self._workspace = workspace
        self._environment = environment
        self._lingering = LingeringPipes()

    async def execute(self, request: wire.ExecRequest, frames: FrameSocket, given: InputStream) -> None:
        """Run the program and send the frames of the call. Cancelling kills everything it started."""
        call = asyncio.current_task()
        program = check_program(request, self._workspace, self._environment)
        run = _Run(program, self._workspace, frames)
        feeding: asyncio.Task[None] | None = None
        try:
            if run.stdin is not None:
                feeding = asyncio.ensure_future(_feed(run.stdin, given))
                feeding.add_done_callback(lambda done: _end_with(done, call))
            reply = await self._run(run, program)
            await run.stop_streaming()
            await frames.send(wire.Reply(exec=reply))
            if feeding is not None and run.stdin is not None:
                # Input that is still under way must not be taken for the next request.
                run.stdin.close()
                await feeding
        finally:
            if feeding is not None:
                feeding.cancel()
            run.close()

    async def _run(self, run: _Run, program: Program) -> wire.ExecReply:
        reply = wire.ExecReply()
        kills_before = self._cgroup.memory_kills()
        started_ns = time.monotonic_ns()
        try:
            process = await self._spawner.start(program.argv, program.env, program.cwd, run.stdio())
        except OSError as error:
            no_process = error.errno == errno.EAGAIN
            reply.outcome = wire.OUTCOME_PIDS_LIMIT if no_process else wire.OUTCOME_FAILED_TO_START
            reply.errno = error.errno or 0
            return reply
        try:
            run.close_tool_ends()
            if program.stream:
                await run.start_streaming(process.started.result())
            timed_out = not await _ended_within(process, program.timeout_s)
            if timed_out:
                await self._spawner.kill(process)
            await _drained(run.pipes)
        except asyncio.CancelledError:
            await self._spawner.kill(process)
            raise
        finally:
            self._spawner.forget(process)
        for pipe in run.pipes:
            pipe.leave_to(self._lingering)
        if timed_out:
            reply.outcome = wire.OUTCOME_TIMED_OUT
        else:
            self._tell_end(reply, process.ended.result(), kills_before)
        run.kept.report(reply, streamed=program.stream)
        reply.duration_us = (time.monotonic_ns() - started_ns) // 1000
        return reply

    def _tell_end(self, reply: wire.ExecReply, status: int, kills_before: int) -> None:
        if os.WIFSIGNALED(status):
            reply.outcome = wire.OUTCOME_SIGNALLED
            reply.signal = os.WTERMSIG(status)
            perhaps_memory = reply.signal == signal.SIGKILL
        else:
            reply.outcome = wire.OUTCOME_EXITED
            reply.exit_code = os.WEXITSTATUS(status)
            # A shell says so when the kernel killed the program it ran.
            perhaps_memory = reply.exit_code == _SHELL_SIGKILL_STATUS
        if perhaps_memory and self._cgroup.memory_kills() > kills_before:
            reply.outcome = wire.OUTCOME_OUT_OF_MEMORY


class _Run:
    """The pipes and the kept output of one program."""

    def __init__(self, program: Program, workspace: str, frames: FrameSocket) -> None:
        limit = program.limit
        self.kept = KeptOutput(limit, lambda: Spill(limit.spill_path, limit.spill_limit_bytes, workspace))
        self.stdin: InputPipe | None = None
        self.pipes: list[OutputPipe] = []
        self._frames = frames
        self._unsent: list[tuple[wire.OutputStream, bytes]] = []
        self._more = asyncio.Event()
        self._streaming: asyncio.Task[None] | None = None
        self._over = False
        self._stream = program.stream
        try:
            for stream in (wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR):
                self.pipes.append(OutputPipe(self._taker(stream)))
            if program.stdin:
                self.stdin = InputPipe()
        except OSError:
            self.close()
            raise

    def _taker(self, stream: wire.OutputStream) -> Callable[[bytearray, int], None]:
        def take(buffer: bytearray, size: int) -> None:
            within = self.kept.add(stream, buffer, size)
            if self._stream and within:
                self._unsent.append((stream, within))
                self._more.set()

        return take

    def stdio(self) -> list[int]:
        """Return what the program gets: stdout, stderr and perhaps stdin."""
        ends = [pipe.write_fd for pipe in self.pipes]
        return [*ends, self.stdin.read_fd] if self.stdin is not None else ends

    def close_tool_ends(self) -> None:
        """Close this process' copies of what the program got."""
        for pipe in self.pipes:
            pipe.close_write_end()
        if self.stdin is not None:
            self.stdin.close_read_end()

    async def start_streaming(self, pid: int) -> None:
        """Send Started, then Output as it arrives."""
        await self._frames.send(wire.Reply(started=wire.Started(pid=pid)))
        self._streaming = asyncio.ensure_future(self._send_output())

    async def stop_streaming(self) -> None:
        """Send what is left."""
        if self._streaming is not None:
            self._over = True
            self._more.set()
            await self._streaming

    async def _send_output(self) -> None:
        while not self._over or self._unsent:
            await self._more.wait()
            self._more.clear()
            unsent, self._unsent = self._unsent, []
            for stream, data in unsent:
                output = wire.Output(stream=stream, data=data)
                await self._frames.send(wire.Reply(output=output))

    def close(self) -> None:
        """Let go of everything; harmless when it is gone already."""
        if self._streaming is not None:
            self._streaming.cancel()
        for pipe in self.pipes:
            pipe.close()
        if self.stdin is not None:
            self.stdin.close()
        self.kept.abandon()


def _end_with(feeding: asyncio.Task[None], call: asyncio.Task[None] | None) -> None:
    """Cancel a call whose caller broke the protocol while sending input."""
    if not feeding.cancelled() and feeding.exception() is not None and call is not None:
        call.cancel()


async def _ended_within(process: Process, timeout_s: float | None) -> bool:
    done, _ = await asyncio.wait([process.ended], timeout=timeout_s)
    return bool(done)


async def _drained(pipes: list[OutputPipe]) -> None:
    """Wait until both pipes are at their end, or silent long enough."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + DRAIN_LIMIT_S
    while (open_pipes := [pipe.closed for pipe in pipes if not pipe.closed.done()]) and loop.time() < limit:
        pieces = sum(pipe.pieces for pipe in pipes)
        await asyncio.wait(open_pipes, timeout=IDLE_S)
        if pieces == sum(pipe.pieces for pipe in pipes) and len(open_pipes) == sum(
            not pipe.closed.done() for pipe in pipes
        ):
            return


async def _feed(stdin: InputPipe, given: InputStream) -> None:
    """Pass input on to the program until the caller ends it."""
    while (data := await given.read()) is not None:
        await stdin.write(data)
    stdin.close()
