"""Background processes in the Python client.

server = await airlock.start_process(["python3", "-m", "http.server"], thread="t1")
async for piece in airlock.process_output("t1", server.id, follow=True):
    ...
"""

import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from gateway.client.messages import Fields, message, record
from gateway.client.programs import ProgramOptions, program_fields
from gateway.client.wire import Wire
from gateway.errors import InvalidArgument
from gateway.v1 import process_service_pb2 as pb

_WAIT_S = 60.0


@dataclass(frozen=True)
class Process:
    """A background process, running or ended.

    `outcome` is empty while its first process runs, then exited, signalled, timed_out, out_of_memory, disk_limit or
    cancelled (it was removed while it ran). `stdout_path` and `stderr_path` name files in the sandbox with its output
    from the first byte, empty while memory has all of it; a file that has reached its limit holds fewer bytes
    (`stdout_path_bytes`, `stderr_path_bytes`) than were written. `stdout_closed` and `stderr_closed` mean that no
    process can write there any more. `rows` and `columns` are 0 without a terminal. `tree` is the number of its live
    processes, including itself, when it was listed, signalled or waited for. `stdin_taken_bytes` is how much input was
    accepted, with a terminal's end-of-file characters.
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
    """A thread's background processes, oldest first; commands left `strays` live processes behind."""

    processes: tuple[Process, ...]
    strays: int


@dataclass(frozen=True)
class ProcessOutput:
    """A piece of output; if bytes were lost, `offset` is greater than the end of the previous piece."""

    offset: int
    data: bytes


class ProcessCalls(Wire):
    """The calls for background processes; a refusal by policy is PermissionDenied."""

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        process_id: str = "",
        terminal: bool = False,
        rows: int = 24,
        columns: int = 80,
        stdin: bool = False,
        merge_stderr: bool = False,
        **options: Unpack[ProgramOptions],
    ) -> Process:
        """Start a background process; without `timeout_s` it has no time limit, not even the policy's.

        A repeated request gets the process as it is now; NotFound once it was removed. At most 64 are kept, running or
        ended: another one replaces the oldest ended one and its output. Raises StartFailed if the kernel does not start
        it, Conflict if `process_id` is in use, Exhausted if 64 are running.
        """
        started = await self._ask(
            pb.StartProcessRequest,
            id=process_id,
            terminal=terminal,
            size=message(pb.WindowSize, rows=rows, columns=columns) if terminal else None,
            stdin=stdin,
            merge_stderr=merge_stderr,
            **program_fields(argv, **options),
        )
        return _process(started.process)

    async def processes(self, thread: str = "default", *, running: bool | None = None) -> Processes:
        """Return a thread's background processes, with `running` only those that run, or with False that have ended."""
        found: list[Process] = []
        token = ""
        wanted: Fields = {"thread": thread, "running": running}
        while True:
            page = await self._ask(pb.ListProcessesRequest, page_token=token, **wanted)
            found += map(_process, page.processes)
            token = page.next_page_token
            if not token:
                return Processes(tuple(found), page.strays)

    async def process_output(
        self, thread: str, process_id: str, *, stderr: bool = False, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[ProcessOutput]:
        """Yield the output from an offset on, with `follow` until no process can write to it. Raises NotFound."""
        wanted: Fields = {"thread": thread, "id": process_id, "stderr": stderr, "follow": follow, "offset": offset}
        async for piece in self._resumed(pb.ReadProcessRequest, wanted):
            wanted["offset"] = piece.offset + len(piece.data)
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
        """Write at most 1 MiB to standard input; with `end`, then close it (on a terminal: end of file).

        Instead of a `request_id`, the only writer may repeat it with the process' `stdin_taken_bytes` before these
        bytes as `offset` (InputGap if it is past them). Raises InputNotTaken if the process did not read all of it in
        time, at most 60 s, and ProcessEnded if no process can read it; `details["taken_bytes"]` says how much was read.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgument(f"data: bytes are expected, not {type(data).__name__}; encode a text first")
        asked: Fields = {"data": bytes(data), "end": end, "offset": offset, "request_id": request_id}
        answer = await self._ask(pb.WriteProcessRequest, timeout_s=timeout_s, thread=thread, id=process_id, **asked)
        return _process(answer.process)

    async def resize_process(self, thread: str, process_id: str, rows: int, columns: int) -> Process:
        """Change the size of a process' terminal."""
        size = message(pb.WindowSize, rows=rows, columns=columns)
        return _process((await self._ask(pb.ResizeProcessRequest, thread=thread, id=process_id, size=size)).process)

    async def signal_process(self, thread: str, process_id: str, signal: int, *, tree: bool = False) -> Process:
        """Send a signal to a process' group, or with `tree` to all its descendants.

        Raises ProcessEnded if the group is gone; its tree may not be. If the connection breaks it raises Unavailable
        and is not repeated, because a second signal has a second effect.
        """
        asked: Fields = {"signal": signal, "tree": tree}
        answer = await self._ask(pb.SignalProcessRequest, safe=False, thread=thread, id=process_id, **asked)
        return _process(answer.process)

    async def kill_strays(self, thread: str = "default") -> int:
        """Kill processes that commands left running and return how many still live; background processes stay."""
        return int((await self._ask(pb.KillStraysRequest, thread=thread)).left)

    async def wait_process(self, thread: str, process_id: str, *, timeout_s: float | None = None) -> Process:
        """Wait until a process ends or `timeout_s` has passed; it may still be running then."""
        if timeout_s is not None and not 0 <= timeout_s < math.inf:  # NaN too
            raise InvalidArgument(
                f"timeout_s {timeout_s!r}: seconds from 0 on; leave it out to wait as long as it takes"
            )
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # The gateway answers before the call's own deadline; the extra second is for transport.
            wait_s = min(max(deadline_s - time.monotonic(), 0.0), _WAIT_S) + 1.0
            answer = await self._ask(pb.WaitProcessRequest, timeout_s=wait_s, thread=thread, id=process_id)
            process = _process(answer.process)
            if not process.running or time.monotonic() >= deadline_s:
                return process

    async def remove_process(self, thread: str, process_id: str) -> Process:
        """Kill a process with its descendants and forget it; return its last state. Its output files stay.

        Raises NotFound, also if an answer was lost and it is already removed.
        """
        return _process((await self._ask(pb.RemoveProcessRequest, thread=thread, id=process_id)).process)


def _process(process: pb.Process) -> Process:
    return record(Process, process, rows=process.size.rows, columns=process.size.columns)
