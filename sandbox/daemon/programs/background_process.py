"""One background process: what runs, how it ended, and what is said of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from sandbox.daemon.limits.cgroup import Cgroup
from sandbox.daemon.programs.process_request import DEFAULT_SIZE, StartRequest
from sandbox.daemon.programs.process_streams import ProcessStreams
from sandbox.daemon.supervisor.spawner import Process
from sandbox.v1 import channel_pb2 as wire

_ARGV_BYTES = 4096
_SHELL_SIGKILL_STATUS = 128 + signal.SIGKILL


class BackgroundProcess:
    """A process that was started.

    It is `running` until its first process is over and what that wrote has been taken; then `over` is done.
    """

    def __init__(self, request: StartRequest, process: Process, streams: ProcessStreams, cgroup: Cgroup) -> None:
        self.id = request.id
        self.process = process
        self.streams = streams
        self.size = request.size or DEFAULT_SIZE
        self.running = True
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Why it is being killed; it ends as told by this when it ends now.
        self.ending: wire.Outcome | None = None
        self.time_limit: asyncio.TimerHandle | None = None
        self._argv = _beginning(request.argv)
        self._outcome = wire.OUTCOME_UNSPECIFIED
        self._exit_code = 0
        self._signal = 0
        self._cgroup = cgroup
        self._kills_before = cgroup.observe_kills()
        self._killed = False
        self._started_ns = time.time_ns()
        self._clock_ns = time.monotonic_ns()
        self._duration_ns: int | None = None
        self._draining: asyncio.Task[None] | None = None
        process.ended.add_done_callback(self._end)

    def signalled(self, number: int) -> None:
        """Note that the caller sent a signal: a SIGKILL is then not the kernel's, for memory."""
        self._killed = self._killed or number == signal.SIGKILL

    def _end(self, ended: asyncio.Future[int]) -> None:
        self._duration_ns = time.monotonic_ns() - self._clock_ns
        status = ended.result()
        self.streams.first_ended()
        # Why it ended is read now: later kills are not its own.
        self._draining = asyncio.get_running_loop().create_task(self._drain(status, self._judge(status)))

    async def _drain(self, status: int, outcome: wire.Outcome) -> None:
        try:
            await self.streams.drain()
        finally:
            self._outcome = outcome
            if outcome == wire.OUTCOME_SIGNALLED:
                self._signal = os.WTERMSIG(status)
            elif outcome == wire.OUTCOME_EXITED:
                self._exit_code = os.WEXITSTATUS(status)
            self.running = False
            self.over.set_result(None)

    def _judge(self, status: int) -> wire.Outcome:
        signalled = os.WIFSIGNALED(status)
        if signalled and self.ending is not None:
            return self.ending
        if self.process.past_disk and self._may_be_killed(status):
            return wire.OUTCOME_DISK_LIMIT
        if self.process.past_kernel and self._may_be_killed(status):
            return wire.OUTCOME_OUT_OF_MEMORY
        killed = self._cgroup.killed_since(self._kills_before)  # asked at each end, for what it tells the next one
        if killed and not self._killed and self._may_be_killed(status):
            return wire.OUTCOME_OUT_OF_MEMORY
        return wire.OUTCOME_SIGNALLED if signalled else wire.OUTCOME_EXITED

    def _may_be_killed(self, status: int) -> bool:
        if os.WIFSIGNALED(status):
            return os.WTERMSIG(status) == signal.SIGKILL
        return os.WEXITSTATUS(status) == _SHELL_SIGKILL_STATUS  # a shell says so when the program it ran was killed

    def report(self, tree: int = 0) -> wire.Process:
        """Return what is said of it; `tree` is how many of its processes live."""
        duration_ns = self._duration_ns if self._duration_ns is not None else time.monotonic_ns() - self._clock_ns
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
            stdin_taken_bytes=streams.input.taken_bytes if streams.input is not None else 0,
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
