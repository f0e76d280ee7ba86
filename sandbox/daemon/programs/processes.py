"""Background processes: started by one call, and available to all calls until they are removed.

A process does not depend on a connection: any caller finds it by its id, and its output by offset.
"""

import asyncio
import errno
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sandbox.daemon.failures import Fault, check_range, conflict, exhausted, fault_of, invalid_argument, too_large
from sandbox.daemon.limits.disk_watch import DiskWatch
from sandbox.daemon.limits.kernel import Cgroup
from sandbox.daemon.programs import background_process
from sandbox.daemon.programs.pipes import LingeringPipes
from sandbox.daemon.programs.process_io import RateLimit
from sandbox.daemon.supervisor.call_tree import count_living
from sandbox.daemon.supervisor.spawner import START_LIMIT_S, Spawner
from sandbox.v1 import channel_pb2 as wire

KEPT_LIMIT = 64
PAGE_LIMIT_BYTES = 1024 * 1024
INPUT_LIMIT_BYTES = 1024 * 1024
WRITE_ID_LIMIT = 128
SIGNAL_LIMIT = 64
_OFFSET_LIMIT = 2**63 - 1
# Each waiting call occupies a connection; health and kill calls must always get one (server.CONNECTIONS_LIMIT).
WAITERS_LIMIT = 128


class Processes:
    """All background processes of the sandbox, the oldest first."""

    def __init__(
        self, spawner: Spawner, cgroup: Cgroup, workspace: str, environment: dict[bytes, bytes], disk: DiskWatch
    ) -> None:
        self._spawner = spawner
        self._disk = disk
        self._cgroup = cgroup
        self._workspace = workspace
        self._environment = environment
        self._kept: dict[str, background_process.BackgroundProcess] = {}
        self._starting: set[str] = set()
        self._rate_limit = RateLimit()
        self._waiters = 0
        self._lingering = LingeringPipes()
        self._tasks: set[asyncio.Task[int]] = set()

    def running(self) -> int:
        return sum(process.running for process in self._kept.values())

    async def answer(self, call: str, request: wire.Request) -> wire.Reply:
        """Return the final frame of a call whose name starts with process_."""
        answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "process_list": self._list,
            "process_read": self._read,
            "process_start": self._start,
            "process_write": self._write,
            "process_resize": self._resize,
            "process_signal": self._signal,
            "process_wait": self._wait,
            "process_remove": self._remove,
        }
        member = call if call in ("process_list", "process_read") else "process"
        return wire.Reply(**{member: await answers[call](getattr(request, call))})

    async def _start(self, asked: wire.ProcessStartRequest) -> wire.Process:
        request = background_process.StartRequest(asked, self._workspace, self._environment)
        if request.id in self._kept or request.id in self._starting:
            raise conflict(f"id {request.id!r} is in use: choose another, or remove that process first")
        if self.running() + len(self._starting) >= KEPT_LIMIT:
            raise conflict(
                f"{KEPT_LIMIT} background processes are running, which is the limit: end or remove one first"
            )
        self._starting.add(request.id)
        try:
            process = await self._spawn(request)
        finally:
            self._starting.discard(request.id)
        self._kept[request.id] = process
        while len(self._kept) > KEPT_LIMIT:
            # The oldest one that has ended, which exists: fewer than the limit run.
            oldest = next(kept for kept in self._kept.values() if not kept.running)
            # What it left behind keeps running, as after an exec.
            oldest.streams.leave_to(self._lingering)
            self._forget(oldest)
        return process.report()

    async def _spawn(self, request: background_process.StartRequest) -> background_process.BackgroundProcess:
        streams = None
        try:
            await self._disk.refuse_process(START_LIMIT_S)
            self._disk.begin()
            streams = background_process.ProcessStreams(request, self._workspace, self._rate_limit)
            process = await self._spawner.start(
                *(request.argv, request.env, request.cwd, streams.stdio()),
                terminal=request.size is not None,
                file_rules=request.file_rules,
            )
        except BaseException as error:
            if streams is not None:
                streams.close()
            if not isinstance(error, OSError):
                raise
            name = repr(request.argv[0][:200])[1:]
            if error.errno != errno.ENOEXEC:
                raise fault_of(error, name) from None
            why = f"{name} is not a program that this machine can execute; name its interpreter first, such as /bin/sh"
            raise invalid_argument(why, errno.ENOEXEC) from None
        self._disk.begin()  # the watch may have ended while the start waited
        streams.close_tool_ends()
        background = background_process.BackgroundProcess(request, process, streams, self._cgroup)
        if request.timeout_s is not None:
            loop = asyncio.get_running_loop()
            background.time_limit = loop.call_later(request.timeout_s, self._time_out, background)
        return background

    def _forget(self, process: background_process.BackgroundProcess) -> None:
        if process.time_limit is not None:
            process.time_limit.cancel()
        process.streams.close()
        self._spawner.forget(process.process)
        if self._kept.get(process.id) is process:
            del self._kept[process.id]

    def _time_out(self, process: background_process.BackgroundProcess) -> None:
        process.ending = wire.OUTCOME_TIMED_OUT
        task = asyncio.get_running_loop().create_task(self._spawner.kill(process.process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _find(self, process_id: str) -> background_process.BackgroundProcess:
        process = self._kept.get(background_process.check_id(process_id))
        if process is None:
            raise Fault(
                wire.FAILURE_KIND_NOT_FOUND,
                f"background process {process_id!r} not found: it was never started, was removed, or ended and "
                f"was replaced by a newer one ({KEPT_LIMIT} are kept); list the processes",
            )
        return process

    async def _living(self) -> dict[int, int]:
        calls: dict[int, int] = {}
        for _ in count_living(calls):
            await asyncio.sleep(0)
        return calls

    async def _report(self, process: background_process.BackgroundProcess) -> wire.Process:
        calls = await self._living()
        return process.report(calls.get(process.process.call, 0))

    async def _list(self, _: wire.ProcessListRequest) -> wire.ProcessListReply:
        calls = await self._living()
        return wire.ProcessListReply(
            processes=[process.report(calls.get(process.process.call, 0)) for process in self._kept.values()],
            strays=sum(count for call, count in calls.items() if not self._spawner.is_live(call)),
        )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._waiters >= WAITERS_LIMIT:
            raise exhausted(
                f"{WAITERS_LIMIT} calls are waiting for background processes, which is the limit: end some of "
                "them first"
            )
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    async def _read(self, request: wire.ProcessReadRequest) -> wire.ProcessReadReply:
        if request.stream not in (wire.OUTPUT_STREAM_STDOUT, wire.OUTPUT_STREAM_STDERR):
            raise invalid_argument(f"stream is {request.stream}; give stdout (1) or stderr (2)")
        check_range("limit_bytes", request.limit_bytes, PAGE_LIMIT_BYTES)
        if request.offset > _OFFSET_LIMIT:
            raise invalid_argument(f"offset is {request.offset}; no output is longer than {_OFFSET_LIMIT} bytes")
        wait_s = background_process.check_wait(request.wait_ms)
        streams = self._find(request.id).streams
        output = streams.stdout if request.stream == wire.OUTPUT_STREAM_STDOUT else streams.stderr
        if output is None:
            raise invalid_argument(
                f"process {request.id!r} has no stderr of its own: with a terminal or merge_stderr it is in stdout"
            )
        with self._waiting():
            await output.wait_for(request.offset, wait_s)
        return output.page(request.offset, request.limit_bytes)

    async def _write(self, request: wire.ProcessWriteRequest) -> wire.Process:
        data, request_id = request.data, request.request_id
        if len(data) > INPUT_LIMIT_BYTES:
            why = f"{INPUT_LIMIT_BYTES} are allowed at once; write them in pieces"
            raise too_large(f"0 of {len(data)} bytes were taken; {why}")
        if len(request_id) > WRITE_ID_LIMIT:
            raise invalid_argument(f"request_id has {len(request_id)} characters; {WRITE_ID_LIMIT} are the most")
        wait_s = background_process.check_wait(request.wait_ms)
        process = self._find(request.id)
        terminal, stdin = process.streams.terminal, process.streams.input
        if stdin is None:
            raise invalid_argument(
                f"process {request.id!r} was started without stdin; start it with stdin or a terminal"
            )
        if request.end and terminal is not None:
            data += terminal.end_of_file()
        with self._waiting():
            offset = request.offset if request.HasField("offset") else None
            taken = await stdin.write(data, wait_s, offset=offset, request_id=request_id)
        if taken < len(data):
            taken = min(taken, len(request.data))  # without a terminal's end-of-file character
            summary = f"{taken} of {len(request.data)} bytes were taken"
            if not stdin.is_open():
                message = f"stdin of process {request.id!r} is closed; {summary}"
                raise conflict(message, errno.EPIPE, taken_bytes=taken)
            raise too_large(
                f"{summary} within {request.wait_ms} ms, for the process does not read"
                f"{', and its input was not ended' if request.end else ''}; go on from there, or wait longer",
                taken_bytes=taken,
            )
        if request.end and terminal is None:
            stdin.close()
        return process.report()

    async def _resize(self, request: wire.ProcessResizeRequest) -> wire.Process:
        process = self._find(request.id)
        if not request.HasField("size"):
            raise invalid_argument("size is missing; give rows and columns")
        rows, columns = background_process.check_size(request.size)
        terminal = process.streams.terminal
        if terminal is None:
            raise invalid_argument(f"process {request.id!r} has no terminal; start it with one to give it a size")
        terminal.resize(rows, columns)
        process.size = rows, columns
        return process.report()

    async def _signal(self, request: wire.ProcessSignalRequest) -> wire.Process:
        number = request.signal
        if not 1 <= number <= SIGNAL_LIMIT:
            raise invalid_argument(f"signal is {number}; give 1 to {SIGNAL_LIMIT}, such as 15 to ask it to end")
        if not request.id:
            if number != signal.SIGKILL or not request.tree:
                raise invalid_argument(
                    "id is empty, which means all strays; they can only be killed: signal 9 with tree"
                )
            return wire.Process(tree=await self._spawner.kill_strays())
        process = self._find(request.id)
        process.signalled(number)
        if not request.tree:
            try:
                await self._spawner.signal(process.process, number)
            except ProcessLookupError:
                raise conflict(
                    f"process {request.id!r} has ended: signal its tree to reach its remaining descendants",
                    errno.ESRCH,
                ) from None
        elif number == signal.SIGKILL:
            await self._spawner.kill(process.process)
        else:
            await self._spawner.signal_tree(process.process, number)
        return await self._report(process)

    async def _wait(self, request: wire.ProcessWaitRequest) -> wire.Process:
        wait_s = background_process.check_wait(request.wait_ms)
        process = self._find(request.id)
        with self._waiting():
            await asyncio.wait([process.over], timeout=wait_s)
        return await self._report(process)

    async def _remove(self, request: wire.ProcessRemoveRequest) -> wire.Process:
        process = self._find(request.id)
        process.ending = process.ending or wire.OUTCOME_CANCELLED
        remaining = await self._spawner.kill(process.process)
        # A killed tree has closed its streams, which are drained at once; a tree that survives may never end.
        await asyncio.wait([process.over], timeout=2.0)
        await process.streams.drain()  # what its children have written since
        self._forget(process)
        return process.report(remaining)
