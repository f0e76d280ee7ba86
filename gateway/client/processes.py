"""The client's side of ProcessService but for RunProgram: background processes.

server = await airlock.start_process(["python3", "-m", "http.server"], thread="t1")
async for piece in airlock.process_output("t1", server.id, follow=True):
    ...
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.client.messages import message, record
from gateway.client.programs import limit_ms, program_message
from gateway.client.wire import Wire
from gateway.errors import InvalidArgument
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb

_WAIT_S = 60.0


@dataclass(frozen=True)
class Process:
    """A background process, running or over.

    `outcome` is empty while its first process runs, else exited, signalled, timed_out, out_of_memory, disk_limit or
    cancelled (it was removed while it ran). `stdout_path` and `stderr_path` name files in the sandbox with the output
    from its first byte; they are empty while memory has all of it. They hold `stdout_path_bytes` and
    `stderr_path_bytes`, which are fewer than were written once a file has reached its limit. `stdout_closed` and
    `stderr_closed` say that no process can write there any more. `rows` and `columns` are 0 without a terminal. `tree`
    counts the live processes it started, itself included, where the call looked: list, signal, wait.
    `stdin_taken_bytes` is what its input has taken, with a terminal's end-of-file characters.
    """

    id: str
    argv: tuple[str, ...]
    running: bool
    outcome: str
    exit_code: int | None
    signal: int | None
    started_at: datetime
    duration_ms: float
    terminal: bool
    rows: int
    columns: int
    stdin_open: bool
    stdout_size_bytes: int
    stderr_size_bytes: int
    stdout_path: str
    stderr_path: str
    stdout_path_bytes: int
    stderr_path_bytes: int
    stdout_closed: bool
    stderr_closed: bool
    tree: int
    stdin_taken_bytes: int = 0


@dataclass(frozen=True)
class Processes:
    """A thread's background processes, the oldest first; `strays` live processes were left behind by commands."""

    processes: tuple[Process, ...]
    strays: int


@dataclass(frozen=True)
class ProcessOutput:
    """A piece of output; `offset` is more than where the last one ended when bytes in between are lost."""

    offset: int
    data: bytes


class ProcessCalls(Wire):
    """The calls about background processes; a refusal by policy is PermissionDenied."""

    @property
    def _processes(self) -> Any:
        return self._stub(grpc_pb.ProcessServiceStub)

    async def start_process(  # noqa: PLR0913 - the public client: one keyword per option
        self,
        argv: Sequence[str],
        *,
        thread: str = "default",
        process_id: str = "",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        terminal: bool = False,
        rows: int = 24,
        columns: int = 80,
        stdin: bool = False,
        merge_stderr: bool = False,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Process:
        """Start a background process; without `timeout_s` it has no time limit, not even the policy's.

        It is started once, however often a broken connection makes the client ask. With a `request_id` of your own you
        may ask again yourself, and get it as it is now; NotFound once it is gone. Raises StartFailed where the kernel
        does not start it, Conflict where `process_id` is in use, Exhausted where 64 run. 64 are kept, running or ended:
        one more forgets the oldest that has ended, with its output.
        """
        request = message(
            pb.StartProcessRequest,
            program=program_message(thread, argv, cwd, env),
            id=process_id,
            terminal=terminal,
            size=message(pb.WindowSize, rows=rows, columns=columns) if terminal else None,
            stdin=stdin,
            merge_stderr=merge_stderr,
            timeout_ms=limit_ms(timeout_s),
            request_id=request_id or str(uuid.uuid4()),
        )
        return _process((await self._unary(self._processes.StartProcess, request, safe=True)).process)

    async def processes(self, thread: str = "default", *, running: bool | None = None) -> Processes:
        """Return a thread's background processes: all, or only those that run, or with False that have ended."""
        found: list[Process] = []
        token, asked = "", {"thread": thread, "running": running}
        while True:
            page = await self._ask(self._processes.ListProcesses, pb.ListProcessesRequest, page_token=token, **asked)
            found += [_process(process) for process in page.processes]
            token = page.next_page_token
            if not token:
                return Processes(tuple(found), page.strays)

    async def process_output(
        self, thread: str, process_id: str, *, stderr: bool = False, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[ProcessOutput]:
        """Yield output from an offset: what there is, or with `follow` until no process can write to it.

        Where the connection breaks, or the gateway is restarted, it goes on with the byte after the last that came.
        Raises NotFound, and Unavailable when the gateway stays away.
        """
        following = offset

        def request() -> pb.ReadProcessRequest:
            return message(
                pb.ReadProcessRequest, thread=thread, id=process_id, stderr=stderr, offset=following, follow=follow
            )

        async for piece in self._resumed(self._processes.ReadProcess, request):
            following = piece.offset + len(piece.data)
            yield ProcessOutput(piece.offset, piece.data)

    async def write_process(
        self,
        thread: str,
        process_id: str,
        data: bytes | bytearray | memoryview,
        *,
        end: bool = False,
        timeout_s: float | None = None,
        offset: int | None = None,
        request_id: str = "",
    ) -> Process:
        """Write to standard input, 1 MiB at most; with `end`, close it after that (on a terminal: end of file).

        Raises InputNotTaken when the process did not read all of it in time, 60 s at most, and ProcessEnded when nobody
        can read it; `details["taken_bytes"]` of both says how much was taken. The bytes are written once, however often
        a broken connection makes the client ask. With a `request_id` of your own you may ask again yourself; or, where
        nobody else writes, with `offset`, the process' `stdin_taken_bytes` before these: InputGap when it is past them.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgument(f"data: bytes are expected, not {type(data).__name__}; encode a text first")
        request = message(
            pb.WriteProcessRequest,
            thread=thread,
            id=process_id,
            data=bytes(data),
            end=end,
            offset=offset,
            request_id=request_id or str(uuid.uuid4()),
        )
        return _process((await self._unary(self._processes.WriteProcess, request, timeout_s, safe=True)).process)

    async def resize_process(self, thread: str, process_id: str, rows: int, columns: int) -> Process:
        """Change the size of a process' terminal."""
        size = message(pb.WindowSize, rows=rows, columns=columns)
        resized = {"thread": thread, "id": process_id, "size": size}
        return _process((await self._ask(self._processes.ResizeProcess, pb.ResizeProcessRequest, **resized)).process)

    async def signal_process(self, thread: str, process_id: str, signal: int, *, tree: bool = False) -> Process:
        """Send a signal to a process' group, or with `tree` to everything it started.

        Raises ProcessEnded where the group is no more; its tree may be. A broken connection is Unavailable, and is not
        tried again, for a second signal is another one.
        """
        request = message(pb.SignalProcessRequest, thread=thread, id=process_id, signal=signal, tree=tree)
        return _process((await self._unary(self._processes.SignalProcess, request)).process)

    async def kill_strays(self, thread: str = "default") -> int:
        """Kill what commands of a thread left running and return how many live still; background processes stay."""
        return int((await self._ask(self._processes.KillStrays, pb.KillStraysRequest, thread=thread)).left)

    async def wait_process(self, thread: str, process_id: str, *, timeout_s: float | None = None) -> Process:
        """Wait for the end of a process; without `timeout_s` as long as it takes. Then it may still be running."""
        if timeout_s is not None and not 0 <= timeout_s < math.inf:  # NaN too
            raise InvalidArgument(
                f"timeout_s {timeout_s!r}: seconds from 0 on; leave it out to wait as long as it takes"
            )
        request = message(pb.WaitProcessRequest, thread=thread, id=process_id)
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            # The gateway answers before the call's own deadline; the second is for the way.
            process = _process(
                (await self._unary(self._processes.WaitProcess, request, min(left_s, _WAIT_S) + 1.0, safe=True)).process
            )
            if not process.running or time.monotonic() >= deadline_s:
                return process

    async def remove_process(self, thread: str, process_id: str) -> Process:
        """Kill everything a process started and forget it; return how it was. Its output files stay.

        Raises NotFound where it is not there, also because an answer was lost and it is removed already.
        """
        remove = self._processes.RemoveProcess
        return _process((await self._ask(remove, pb.RemoveProcessRequest, thread=thread, id=process_id)).process)


def _process(process: pb.Process) -> Process:
    return record(Process, process, rows=process.size.rows, columns=process.size.columns)
