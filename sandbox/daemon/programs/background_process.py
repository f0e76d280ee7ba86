"""One background process: what runs, how it ended, and its report."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from sandbox.daemon.limits.cgroup import Cgroup
from sandbox.daemon.programs.ending import outcome_of
from sandbox.daemon.programs.process_request import DEFAULT_SIZE, StartRequest
from sandbox.daemon.programs.process_streams import ProcessStreams
from sandbox.daemon.supervisor.spawner import Process
from sandbox.v1 import channel_pb2 as wire

_ARGV_BYTES = 4096


class BackgroundProcess:
    """A started process. It is `running` until its first process has ended and its output is read; then `over` is done.

    `ending` is the reason it is being killed, which becomes its outcome.
    """

    def __init__(self, request: StartRequest, process: Process, streams: ProcessStreams, cgroup: Cgroup) -> None:
        self.id = request.id
        self.process = process
        self.streams = streams
        self.size = request.size or DEFAULT_SIZE
        self.running = True
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ending: wire.Outcome | None = None
        self.time_limit: asyncio.TimerHandle | None = None
        self._argv = _prefix(request.argv)
        self._outcome = wire.OUTCOME_UNSPECIFIED
        self._exit_code = 0
        self._signal = 0
        self._cgroup = cgroup
        self._kills_before = cgroup.observe_kills()
        self._killed_by_caller = False
        self._started_ns = time.time_ns()
        self._clock_ns = time.monotonic_ns()
        self._duration_ns: int | None = None
        self._draining: asyncio.Task[None] | None = None
        process.ended.add_done_callback(self._end)

    def signalled(self, number: int) -> None:
        """Record a signal from the caller: a SIGKILL is then not the kernel's, for memory."""
        self._killed_by_caller = self._killed_by_caller or number == signal.SIGKILL

    def _end(self, ended: asyncio.Future[int]) -> None:
        self._duration_ns = time.monotonic_ns() - self._clock_ns
        status = ended.result()
        self.streams.first_ended()
        # Decided now, because later kills concern other processes.
        if self.ending is not None and os.WIFSIGNALED(status):
            outcome = self.ending
        else:
            killed_by_caller = self._killed_by_caller
            outcome = outcome_of(self.process, self._cgroup, self._kills_before, killed_by_caller=killed_by_caller)
        self._draining = asyncio.get_running_loop().create_task(self._drain(status, outcome))

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

    def report(self, tree: int = 0) -> wire.Process:
        """Return its state; `tree` is the number of its live processes."""
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


def _prefix(argv: list[bytes]) -> list[bytes]:
    """Return the first bytes of arguments; the last one may be cut."""
    result: list[bytes] = []
    left = _ARGV_BYTES
    for argument in argv:
        if left <= 0 or len(result) >= _ARGV_BYTES:
            break
        result.append(argument[:left])
        left -= len(argument)
    return result
