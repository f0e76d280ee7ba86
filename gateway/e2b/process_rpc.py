"""envd's service process.Process over background processes of Airlock.

A pid here is a number made of a process' id, so that any gateway finds the process again; the kernel has another one.
"""

import asyncio
import contextlib
import hashlib
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from gateway.client import Process
from gateway.e2b.envd import process_pb2 as pb
from gateway.e2b.envd_call import Context, EnvdCall, keepalive_of
from gateway.e2b.errors import NoCounterpart
from gateway.e2b.output_events import Output, output_events
from gateway.e2b.paths import path_of
from gateway.errors import DeadlineExceeded, InvalidArgument, NotFound, ProcessEnded, QuotaExceeded, StartFailed

_BASH, _SH = "/bin/bash", "/bin/sh"
_ENOENT = "2"
_WRITE_LIMIT_BYTES = 1024 * 1024
_KNOWN_LIMIT = 4096
_SIGNALS = {pb.SIGNAL_SIGTERM: signal.SIGTERM, pb.SIGNAL_SIGKILL: signal.SIGKILL}
# As Go names them, in whose words the SDKs' users read how a command ended.
_SIGNAL_NAMES = {1: "hangup", 2: "interrupt", 3: "quit", 6: "aborted", 9: "killed", 11: "segmentation fault"}
_SIGNAL_NAMES |= {13: "broken pipe", 14: "alarm clock", 15: "terminated"}


@dataclass
class ProcessRpc:
    """The methods. `known` remembers the ids of processes by sandbox and pid."""

    known: OrderedDict[tuple[str, int], str] = field(default_factory=OrderedDict)

    async def list(self, call: EnvdCall, _request: pb.ListRequest, _context: Context) -> pb.ListResponse:
        found = (await call.client.processes(call.thread, running=True)).processes
        return pb.ListResponse(processes=[_info(one) for one in found])

    async def start(
        self, call: EnvdCall, request: pb.StartRequest, context: Context
    ) -> AsyncIterator[pb.StartResponse]:
        deadline_s = _deadline_s(context)
        timeout_s = None if context.timeout_ms is None else max(context.timeout_ms / 1000, 0.001)
        process = await self._started(call, request, timeout_s)
        async for event in self._events(call, process, context, deadline_s):
            yield pb.StartResponse(event=event)

    async def connect(
        self, call: EnvdCall, request: pb.ConnectRequest, context: Context
    ) -> AsyncIterator[pb.ConnectResponse]:
        deadline_s = _deadline_s(context)
        process = await self._found(call, request.process)
        async for event in self._events(call, process, context, deadline_s):
            yield pb.ConnectResponse(event=event)

    async def _started(self, call: EnvdCall, request: pb.StartRequest, timeout_s: float | None) -> Process:
        asked = request.process
        terminal = request.HasField("pty")
        options: dict[str, Any] = {
            "thread": call.thread,
            "cwd": path_of(asked.cwd).inside,
            "env": {**call.env, **asked.envs},
            "timeout_s": timeout_s,
            # As in envd, a client that does not say may write.
            "stdin": request.stdin if request.HasField("stdin") else True,
        }
        if terminal:
            size = request.pty.size
            options |= {"terminal": True, "rows": size.rows or 24, "columns": size.cols or 80}
        if request.HasField("tag"):
            options["process_id"] = request.tag
        argv = [asked.cmd, *asked.args]
        if argv[0] == _BASH:
            # A login shell would run what the home directory says first, which policies refuse to guess.
            argv = [word for at, word in enumerate(argv) if not (word == "-l" and at < 3)]
        try:
            return await call.client.start_process(argv, **options)
        except StartFailed as error:
            if argv[0] != _BASH or error.details.get("errno") != _ENOENT:
                raise
            return await call.client.start_process([_SH, *argv[1:]], **options)  # an image without bash

    async def _events(
        self, call: EnvdCall, process: Process, context: Context, deadline_s: float | None
    ) -> AsyncIterator[pb.ProcessEvent]:
        pid = pid_of(process.id)
        self._remember(call, pid, process.id)
        yield pb.ProcessEvent(start=pb.ProcessEvent.StartEvent(pid=pid))
        keepalive_s = keepalive_of(context)
        async for event in output_events(call, process, keepalive_s=keepalive_s, deadline_s=deadline_s):
            if isinstance(event, Output):
                name = "pty" if process.terminal else event.stream
                yield pb.ProcessEvent(data=pb.ProcessEvent.DataEvent(**{name: event.data}))
            elif isinstance(event, Process):
                yield pb.ProcessEvent(end=_end(event))
            else:
                yield pb.ProcessEvent(keepalive=pb.ProcessEvent.KeepAlive())

    async def update(self, call: EnvdCall, request: pb.UpdateRequest, _context: Context) -> pb.UpdateResponse:
        process_id = await self._id(call, request.process)
        size = request.pty.size
        await call.client.resize_process(call.thread, process_id, size.rows, size.cols)
        return pb.UpdateResponse()

    async def send_input(self, call: EnvdCall, request: pb.SendInputRequest, _context: Context) -> pb.SendInputResponse:
        await self._write(call, await self._id(call, request.process), request.input)
        return pb.SendInputResponse()

    async def stream_input(
        self, call: EnvdCall, requests: AsyncIterator[pb.StreamInputRequest], _context: Context
    ) -> pb.StreamInputResponse:
        process_id = ""
        async for request in requests:
            kind = request.WhichOneof("event")
            if kind == "start":
                process_id = await self._id(call, request.start.process)
            elif kind == "data":
                if not process_id:
                    raise InvalidArgument("the first message names the process")
                await self._write(call, process_id, request.data.input)
        return pb.StreamInputResponse()

    async def close_stdin(
        self, call: EnvdCall, request: pb.CloseStdinRequest, _context: Context
    ) -> pb.CloseStdinResponse:
        process_id = await self._id(call, request.process)
        await call.client.write_process(call.thread, process_id, b"", end=True)
        return pb.CloseStdinResponse()

    async def send_signal(
        self, call: EnvdCall, request: pb.SendSignalRequest, _context: Context
    ) -> pb.SendSignalResponse:
        number = _SIGNALS.get(request.signal)
        if number is None:
            raise NoCounterpart("signal: SIGTERM and SIGKILL are known")
        process_id = await self._id(call, request.process)
        try:
            await call.client.signal_process(call.thread, process_id, number)
        except ProcessEnded as error:
            raise NotFound(f"process {_shown(request.process)} not found: it has ended") from error
        if number == signal.SIGKILL:  # what is killed leaves nothing behind
            with contextlib.suppress(NotFound, ProcessEnded, QuotaExceeded):
                await call.client.signal_process(call.thread, process_id, number, tree=True)
        return pb.SendSignalResponse()

    async def _write(self, call: EnvdCall, process_id: str, given: pb.ProcessInput) -> None:
        data = given.pty if given.WhichOneof("input") == "pty" else given.stdin
        for at in range(0, len(data), _WRITE_LIMIT_BYTES):
            await call.client.write_process(call.thread, process_id, data[at : at + _WRITE_LIMIT_BYTES])

    async def _id(self, call: EnvdCall, selector: pb.ProcessSelector) -> str:
        """Return the id of a process that runs, or ran a moment ago."""
        known = self.known.get((call.sandbox.id, selector.pid)) if selector.pid else None
        if known is not None:
            return known
        process = await self._found(call, selector)
        if not process.running:
            raise NotFound(f"process {_shown(selector)} not found: it has ended")
        return process.id

    async def _found(self, call: EnvdCall, selector: pb.ProcessSelector) -> Process:
        kind = selector.WhichOneof("selector")
        for process in (await call.client.processes(call.thread)).processes:
            if selector.pid == pid_of(process.id) if kind == "pid" else selector.tag == process.id:
                self._remember(call, pid_of(process.id), process.id)
                return process
        raise NotFound(f"process {_shown(selector)} not found")

    def _remember(self, call: EnvdCall, pid: int, process_id: str) -> None:
        self.known[call.sandbox.id, pid] = process_id
        while len(self.known) > _KNOWN_LIMIT:
            self.known.popitem(last=False)


def pid_of(process_id: str) -> int:
    """Return the number by which an SDK names a process."""
    return int.from_bytes(hashlib.sha256(process_id.encode()).digest()[:4]) >> 1 or 1


def _info(process: Process) -> pb.ProcessInfo:
    cmd, *args = process.argv or ("",)
    return pb.ProcessInfo(config=pb.ProcessConfig(cmd=cmd, args=args), pid=pid_of(process.id), tag=process.id)


def _end(process: Process) -> pb.ProcessEvent.EndEvent:
    """Return how a process ended, in envd's words. Raises DeadlineExceeded for one whose own time was over."""
    if process.outcome == "timed_out":
        raise DeadlineExceeded("the process was killed: its time is over")
    if process.outcome == "exited":
        code = process.exit_code or 0
        status = f"exit status {code}"
        return pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=status, error=status if code else None)
    number = process.signal
    status = process.outcome if number is None else f"signal: {_SIGNAL_NAMES.get(number, number)}"
    return pb.ProcessEvent.EndEvent(exit_code=-1, exited=False, status=status, error=status)


def _deadline_s(context: Context) -> float | None:
    """Return when the caller's time is over, on the event loop's clock."""
    return None if context.timeout_ms is None else asyncio.get_running_loop().time() + context.timeout_ms / 1000


def _shown(selector: pb.ProcessSelector) -> str:
    return f"with pid {selector.pid}" if selector.WhichOneof("selector") == "pid" else f"with tag {selector.tag[:64]!r}"
