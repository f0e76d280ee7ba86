"""What a background process reads and writes: pipes, or a terminal."""

from __future__ import annotations

import asyncio
import os

from sandbox.daemon.programs.output_file import OutputFile
from sandbox.daemon.programs.pipes import LingeringPipes, OutputPipe
from sandbox.daemon.programs.process_input import ProcessInput
from sandbox.daemon.programs.process_output import StreamOutput
from sandbox.daemon.programs.process_request import StartRequest
from sandbox.daemon.programs.rate_limit import RateLimit, Source

# A child may keep the streams open. Those of a process that is over are drained when they were silent so long.
_IDLE_S = 0.05
# And in any case after so long, whatever a child goes on writing.
_DRAIN_LIMIT_S = 0.5


class ProcessStreams:
    """The daemon's ends; `stderr` is None when it goes where stdout does, `input` when there is none."""

    def __init__(self, request: StartRequest, workspace: str, pace: RateLimit) -> None:
        self.terminal = None
        self.input: ProcessInput | None = None
        self._request = request
        self._workspace = workspace
        self._pace = pace
        self._pipes: list[OutputPipe] = []
        self._drain_turn = asyncio.Lock()
        self._stdin = -1
        self.stdout = self._output("stdout")
        self.stderr = None if request.size is not None or request.merge_stderr else self._output("stderr")
        if request.size is not None:
            from sandbox.daemon.programs.terminal import Terminal

            self.terminal = Terminal(self.stdout, *request.size, pace)
            self.input = self.terminal.input
            return
        try:
            for output in (self.stdout, self.stderr):
                if output is not None:
                    self._pipes.append(_pipe_into(output, pace))
            if request.stdin:
                self._stdin, fd = os.pipe()
                os.set_blocking(fd, False)
                self.input = ProcessInput(fd)
        except OSError:
            self.close()
            raise

    def _output(self, name: str) -> StreamOutput:
        request, workspace = self._request, self._workspace
        path = f"{request.directory}/{request.id}.{name}"
        limit_bytes = request.file_limit_bytes
        has_file = bool(limit_bytes)
        return StreamOutput(
            request.ring_bytes, (lambda: OutputFile(path, limit_bytes, workspace)) if has_file else None
        )

    def stdio(self) -> list[int]:
        """Return what the program gets."""
        if self.terminal is not None:
            return self.terminal.stdio()
        stdout = self._pipes[0].write_fd
        stderr = self._pipes[-1].write_fd
        return [stdout, stderr, self._stdin] if self.input is not None else [stdout, stderr]

    def started(self) -> None:
        """Close this process' copies of what the program got."""
        for pipe in self._pipes:
            pipe.close_write_end()
        self._close_stdin()

    def first_ended(self) -> None:
        """The first process is over."""
        if self.terminal is not None:
            self.terminal.close_tool_ends()

    async def drain(self) -> None:
        """Take everything that was written until now, then wait until nobody holds the streams or they fall silent.

        Half a second is the most that a child which goes on writing makes of it.
        """
        async with self._drain_turn:  # a pipe tells only one at a time that it was emptied
            await self._drain()

    async def _drain(self) -> None:
        # One that waits for its turn has to be emptied first; a terminal, which does not tell what is in it, may seem
        # silent meanwhile.
        sources: list[Source] = [self.terminal] if self.terminal is not None else [*self._pipes]
        for source in sources:
            self._pace.hurry(source)
        try:
            if self._pipes:
                await asyncio.wait([pipe.take_waiting() for pipe in self._pipes])
            if self.terminal is not None:
                await self._fall_silent()
        finally:
            for source in sources:
                self._pace.calm(source)
        if self._pipes:
            await self._fall_silent()

    async def _fall_silent(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _DRAIN_LIMIT_S
        closed = [self.terminal.closed] if self.terminal is not None else [pipe.closed for pipe in self._pipes]
        seen_bytes = -1
        while seen_bytes != self._size_bytes() and loop.time() < deadline_s:
            seen_bytes = self._size_bytes()
            _, still_open = await asyncio.wait(closed, timeout=_IDLE_S)
            if not still_open:
                return

    def _size_bytes(self) -> int:
        return self.stdout.size_bytes + (self.stderr.size_bytes if self.stderr is not None else 0)

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Give up pipes that somebody may still write to, and close everything else."""
        for pipe in self._pipes:
            pipe.leave_to(lingering)
        self.close()

    def close(self) -> None:
        """Let go of everything; harmless when it is gone already."""
        for pipe in self._pipes:
            pipe.close()
        if self.terminal is not None:
            self.terminal.close()
        elif self.input is not None:
            self.input.close()
        self._close_stdin()
        self.stdout.end()
        if self.stderr is not None:
            self.stderr.end()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


def _pipe_into(output: StreamOutput, pace: RateLimit) -> OutputPipe:
    def take(buffer: bytearray, size: int) -> None:
        output.add(buffer, size)
        pace.took(pipe, size)

    pipe = OutputPipe(take)
    pipe.closed.add_done_callback(lambda _: output.end())
    return pipe
