"""The streams of a background process: pipes, or a terminal."""

from __future__ import annotations

import asyncio
import os

from sandbox.daemon.programs.output_file import OutputFile
from sandbox.daemon.programs.pipes import LingeringPipes, OutputPipe, until_silent
from sandbox.daemon.programs.process_input import ProcessInput
from sandbox.daemon.programs.process_output import StreamOutput
from sandbox.daemon.programs.process_request import StartRequest
from sandbox.daemon.programs.rate_limit import RateLimit, Source


class ProcessStreams:
    """The daemon's ends; `stderr` is None if it is merged into stdout, `input` if there is none."""

    def __init__(self, request: StartRequest, workspace: str, rate_limit: RateLimit) -> None:
        self.terminal = None
        self.input: ProcessInput | None = None
        self._request = request
        self._workspace = workspace
        self._rate_limit = rate_limit
        self._pipes: list[OutputPipe] = []
        self._drain_lock = asyncio.Lock()
        self._stdin = -1
        self.stdout = self._output("stdout")
        self.stderr = None if request.size is not None or request.merge_stderr else self._output("stderr")
        if request.size is not None:
            from sandbox.daemon.programs.terminal import Terminal

            self.terminal = Terminal(self.stdout, *request.size, rate_limit)
            self.input = self.terminal.input
            return
        try:
            for output in (self.stdout, self.stderr):
                if output is not None:
                    self._pipes.append(_pipe_into(output, rate_limit))
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
        return StreamOutput(
            request.ring_bytes, (lambda: OutputFile(path, limit_bytes, workspace)) if limit_bytes else None
        )

    def stdio(self) -> list[int]:
        if self.terminal is not None:
            return self.terminal.stdio()
        stdout, stderr = self._pipes[0].write_fd, self._pipes[-1].write_fd
        return [stdout, stderr, self._stdin] if self.input is not None else [stdout, stderr]

    def started(self) -> None:
        for pipe in self._pipes:
            pipe.close_write_end()
        self._close_stdin()

    def first_ended(self) -> None:
        if self.terminal is not None:
            self.terminal.close_tool_ends()

    async def drain(self) -> None:
        """Read everything that was written until now, then wait until the streams are closed or silent."""
        async with self._drain_lock:  # a pipe has one emptied() future at a time
            # Without the rate limit: a paused pipe has to be emptied, and a paused terminal would seem silent.
            sources: list[Source] = [self.terminal] if self.terminal is not None else [*self._pipes]
            for source in sources:
                self._rate_limit.exempt(source)
            try:
                if self._pipes:
                    await asyncio.wait([pipe.emptied() for pipe in self._pipes])
                if self.terminal is not None:
                    await until_silent([self.terminal.closed], self._size_bytes)
            finally:
                for source in sources:
                    self._rate_limit.include(source)
            if self._pipes:
                await until_silent([pipe.closed for pipe in self._pipes], self._size_bytes)

    def _size_bytes(self) -> int:
        return self.stdout.size_bytes + (self.stderr.size_bytes if self.stderr is not None else 0)

    def leave_to(self, lingering: LingeringPipes) -> None:
        """Release pipes that other processes may still write to, and close everything else."""
        for pipe in self._pipes:
            pipe.leave_to(lingering)
        self.close()

    def close(self) -> None:
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


def _pipe_into(output: StreamOutput, rate_limit: RateLimit) -> OutputPipe:
    def take(buffer: bytearray, size: int) -> None:
        output.add(buffer, size)
        rate_limit.took(pipe, size)

    pipe = OutputPipe(take)
    pipe.closed.add_done_callback(lambda _: output.end())
    return pipe
