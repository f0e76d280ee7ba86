"""One background process: what runs, how it ended, and what is said of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from sandbox.daemon.cgroup import Cgroup
from sandbox.daemon.process_request import DEFAULT_SIZE, StartRequest
from sandbox.daemon.process_streams import ProcessStreams
from sandbox.daemon.spawner import Process
from sandbox.v1 import channel_pb2 as wire

_ARGV_BYTES = 4096
_SHELL_SIGKILL_STATUS = 128 + signal.SIGKILL


class BackgroundProcess:
    """A process that was started; it is `running` until its first process is over."""

    def __init__(self, request: StartRequest, process: Process, streams: ProcessStreams, cgroup: Cgroup) -> None:
        self.id = request.id
        self.process = process
        self.streams = streams
        self.size = request.size or DEFAULT_SIZE
        self.running = True
        # Why it is being killed; it ends as told by this when it ends now.
        self.ending: wire.Outcome | None = None
        self.time_limit: asyncio.TimerHandle | None = None
        self._argv = _beginning(request.argv)
        self._outcome = wire.OUTCOME_UNSPECIFIED
        self._exit_code = 0
        self._signal = 0
        self._cgroup = cgroup
        self._kills_before = cgroup.memory_kills()
        self._killed = False
        self._started_ns = time.time_ns()
        self._clock_ns = time.monotonic_ns()
        self._duration_ns = 0
        process.ended.add_done_callback(self._end)

    def signalled(self, number: int) -> None:
        """Note that the caller sent a signal: a SIGKILL is then not the kernel's, for memory."""
        self._killed = self._killed or number == signal.SIGKILL

    def _end(self, ended: asyncio.Future[int]) -> None:
        self._duration_ns = time.monotonic_ns() - self._clock_ns
        self.running = False
        status = ended.result()
        self.streams.first_ended()
        signalled = os.WIFSIGNALED(status)
        if signalled and self.ending is not None:
            self._outcome = self.ending
        elif self._may_be_for_memory(status) and self._cgroup.memory_kills() > self._kills_before:
            self._outcome = wire.OUTCOME_OUT_OF_MEMORY
        elif signalled:
            self._outcome = wire.OUTCOME_SIGNALLED
            self._signal = os.WTERMSIG(status)
        else:
            self._outcome = wire.OUTCOME_EXITED
            self._exit_code = os.WEXITSTATUS(status)

    def _may_be_for_memory(self, status: int) -> bool:
        if self._killed:
            return False
        if os.WIFSIGNALED(status):
            return os.WTERMSIG(status) == signal.SIGKILL
        return os.WEXITSTATUS(status) == _SHELL_SIGKILL_STATUS  # a shell says so when the program it ran was killed

    def report(self, tree: int = 0) -> wire.Process:
        """Return what is said of it; `tree` is how many of its processes live."""
        duration_ns = time.monotonic_ns() - self._clock_ns if self.running else self._duration_ns
        streams = self.streams
        reply = wire.Process(
            id=self.id,
            pid=self.process.started.result(),
            argv=self._argv,
            running=self.running,
            outcome=self._outcome,
            exit_code=self._exit_code,
            signal=self._signal,
            started_ns=self._started_ns,
            duration_us=duration_ns // 1000,
            terminal=streams.terminal is not None,
            stdin_open=streams.input is not None and streams.input.is_open(),
            stdout=streams.stdout.report(),
            stderr=streams.stderr.report() if streams.stderr is not None else None,
            tree=tree,
        )
        if streams.terminal is not None:
            reply.size.rows, reply.size.columns = self.size
        return reply


def _beginning(argv: list[bytes]) -> list[bytes]:
    """Return the first bytes of arguments, cut inside one where that is where they end."""
    result: list[bytes] = []
    left = _ARGV_BYTES
    for argument in argv:
        if left <= 0 or len(result) >= _ARGV_BYTES:
            break
        result.append(argument[:left])
        left -= len(argument)
    return result
