"""ProcessService: programs with streams, and background processes, in a thread's sandbox.

Starting one is a judged call. The other RPCs act on processes that the tenant itself started, in the same thread, so
policy does not judge them again. Those that are audited count against the tenant's rate limit, as calls do.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from pydantic import JsonValue

from gateway.audit.call_audit import process_entry
from gateway.errors import Conflict, InvalidArgument, TooLarge
from gateway.services.messages import failure, process_message
from gateway.services.streamed_program import streamed_program
from gateway.serving.edge import Authenticator, deadline_s, streaming, unary
from gateway.support.clock import MakeId, make_id
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.quotas import TenantLimit
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.program_calls import TOOL, ProcessStart, program_of, start_arguments
from gateway.tool_calls.requested_calls import RequestedPrograms, made_process_id, program_request
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb
from sandbox.client.replies import PROCESSES_LIMIT
from sandbox.protocols import Process, ProcessSpec

# A write stays in memory here until the process reads.
_WRITES_OF_A_TENANT = 16
_WRITE_LIMIT_BYTES = 1024 * 1024
_TIMEOUT_LIMIT_MS = 7 * 86_400_000
_WAIT_LIMIT_S = 60.0
# How long to wait for a page of followed output; each wait marks the thread's sandbox as in use.
_FOLLOW_WAIT_S = 20.0
_EMPTY_PAGE_PAUSE_S = 0.05
# The answer to a wait must be sent before the caller's deadline.
_ANSWER_S = 1.0
_ROWS, _COLUMNS, _SIZE_LIMIT = 24, 80, 4096
_SIGNAL_LIMIT = 64
# What makes a request to start a program another one, besides the program and the size of its terminal.
_HOW_STARTED = ("id", "terminal", "stdin", "merge_stderr", "timeout_ms")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
log = structlog.get_logger(__name__)


class _OfProcess(Protocol):
    """A request about one process."""

    thread: str
    id: str


@dataclass(eq=False)
class ProcessService(grpc_pb.ProcessServiceServicer):
    """Runs programs."""

    scope = "tool"
    works = ("RunProgram",)
    waits = ("WaitProcess",)

    tool_calls: ToolCalls
    authenticate: Authenticator
    requested: RequestedPrograms
    ids: MakeId = make_id
    _writes: TenantLimit = field(default_factory=lambda: TenantLimit(_WRITES_OF_A_TENANT, "writes to processes"))

    @streaming
    async def RunProgram(
        self, tenant: Tenant, request: AsyncIterator[pb.RunProgramRequest]
    ) -> AsyncIterator[pb.RunProgramResponse]:
        """Run a program; it ends when the client disconnects."""
        async with contextlib.aclosing(streamed_program(self.tool_calls, self.requested, tenant, request)) as said:
            async for one in said:
                yield one

    @unary
    async def StartProcess(self, tenant: Tenant, request: pb.StartProcessRequest) -> pb.StartProcessResponse:
        program = program_of(request.program)
        rows, columns = _check_start(request)
        how_started: dict[str, JsonValue] = {name: getattr(request, name) for name in _HOW_STARTED}
        how_started["size"] = [rows, columns]
        thread = request.program.thread
        request_ = program_request(request.request_id, "StartProcess", thread, program, how_started)
        process_id = request.id or (self.ids("proc") if request_ is None else made_process_id(tenant, request_))
        sandbox = await self.tool_calls.sandbox(tenant, thread)
        if request_ is not None:
            process = await self.requested.process(tenant, request_, sandbox, process_id, program.argv_bytes())
            if process is not None:
                return pb.StartProcessResponse(process=process_message(process))
        spec = ProcessSpec(
            process_id,
            program.argv_bytes(),
            env=program.env,
            cwd=program.cwd,
            terminal=request.terminal,
            rows=rows,
            columns=columns,
            stdin=request.stdin,
            merge_stderr=request.merge_stderr,
            timeout_s=request.timeout_ms / 1000 or None,
        )
        start = ProcessStart(program, spec)
        arguments = start_arguments(program, request.id, terminal=request.terminal, stdin=request.stdin)
        new = NewCall(thread, TOOL, arguments, executor=start, request=request_)
        finished = await self.tool_calls.call(tenant, new)
        if request_ is not None and request_.taken:
            raise request_.in_progress()
        process = start.process
        if request_ is not None and not request.id and isinstance(start.error, Conflict):
            # No other request makes this id: an attempt whose caller went away has started it just now.
            process = await self.requested.kept(sandbox, process_id, program.argv_bytes())
        if process is None:
            raise failure(finished, start.error)
        return pb.StartProcessResponse(process=process_message(process))

    @unary
    async def ListProcesses(self, tenant: Tenant, request: pb.ListProcessesRequest) -> pb.ListProcessesResponse:
        wanted = request.running if request.HasField("running") else None
        size = page_size(request.page_size, usual=PROCESSES_LIMIT)
        query = ("processes", tenant.name, request.thread, wanted)
        after = place_of(request.page_token, *query)
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        found = await sandbox.list_processes()
        processes = [one for one in found.processes if wanted is None or one.running == wanted]
        rest = [one for one in sorted(processes, key=_place) if after is None or _place(one) > after]
        shown, token = paged(rest, size, _place, *query)
        return pb.ListProcessesResponse(
            processes=[process_message(one) for one in shown], strays=found.strays, next_page_token=token
        )

    @streaming
    async def ReadProcess(
        self, tenant: Tenant, request: pb.ReadProcessRequest
    ) -> AsyncIterator[pb.ReadProcessResponse]:
        """Stream output from an offset: what there is now or, with follow, until there can be no more."""
        process_id = _known_id(request.id)
        reader = await self.tool_calls.process_reader(tenant, request.thread)
        offset, stop_at = request.offset, -1
        while True:
            wait_s = _FOLLOW_WAIT_S if request.follow else 0.0
            page = await reader.read(process_id, stderr=request.stderr, offset=offset, wait_s=wait_s)
            if page.data:
                yield pb.ReadProcessResponse(offset=page.offset, data=page.data)
            elif request.follow and not page.end:
                await asyncio.sleep(_EMPTY_PAGE_PAUSE_S)  # a daemon that does not wait must not spin the gateway
            offset = page.offset + len(page.data)
            if stop_at < 0:
                stop_at = page.size_bytes  # else a process that writes as fast as it is read would never end
            if page.end or (not request.follow and (not page.data or offset >= stop_at)):
                return

    @unary
    async def WriteProcess(self, tenant: Tenant, request: pb.WriteProcessRequest) -> pb.WriteProcessResponse:
        """Write to standard input; answered when the process's pipe has taken the data."""
        if len(request.data) > _WRITE_LIMIT_BYTES:
            raise TooLarge(f"data: {_WRITE_LIMIT_BYTES:,} bytes at most; write the rest in further calls")

        async def write(sandbox: ThreadSandbox) -> Process:
            log.debug("process input", **_whose(tenant, request.thread, request.id), bytes=len(request.data))
            return await sandbox.write_process(
                request.id,
                request.data,
                end=request.end,
                wait_s=_wait_s(),
                offset=request.offset if request.HasField("offset") else None,
                request_id=request.request_id,
            )

        _known_id(request.id)
        with self._writes.hold(tenant.name):
            process = await self._changed(tenant, request, "write", write, len(request.data))
        return pb.WriteProcessResponse(process=process)

    async def _changed(
        self,
        tenant: Tenant,
        request: _OfProcess,
        kind: str,
        change: Callable[[ThreadSandbox], Awaitable[Process]],
        size_bytes: int = 0,
        **details: int,
    ) -> pb.Process:
        """Change a process, within the tenant's rate limit, record it in the audit, and return the process."""
        _known_id(request.id)
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        await self.tool_calls.take_place(tenant)
        process = await change(sandbox)
        await self.tool_calls.record(process_entry(tenant, request.thread, kind, request.id, size_bytes, **details))
        return process_message(process)

    @unary
    async def ResizeProcess(self, tenant: Tenant, request: pb.ResizeProcessRequest) -> pb.ResizeProcessResponse:
        size = _size(request.size)
        process = await self._changed(
            tenant, request, "resize", lambda sandbox: sandbox.resize_process(request.id, *size)
        )
        return pb.ResizeProcessResponse(process=process)

    @unary
    async def SignalProcess(self, tenant: Tenant, request: pb.SignalProcessRequest) -> pb.SignalProcessResponse:
        if not 1 <= request.signal <= _SIGNAL_LIMIT:
            raise InvalidArgument(f"signal: a number of Linux is expected, 1 to {_SIGNAL_LIMIT}; 15 asks to end")

        async def send(sandbox: ThreadSandbox) -> Process:
            log.debug("process signal", **_whose(tenant, request.thread, request.id), signal=request.signal)
            return await sandbox.signal_process(request.id, request.signal, tree=request.tree)

        process = await self._changed(tenant, request, "signal", send, signal=request.signal, tree=request.tree)
        return pb.SignalProcessResponse(process=process)

    @unary
    async def KillStrays(self, tenant: Tenant, request: pb.KillStraysRequest) -> pb.KillStraysResponse:
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        log.debug("strays are killed", tenant=tenant.name, thread=request.thread or "default")
        await self.tool_calls.take_place(tenant)
        found, left = await sandbox.kill_strays()
        if found:
            await self.tool_calls.record(process_entry(tenant, request.thread, "kill_strays", left=left))
        return pb.KillStraysResponse(left=left)

    @unary
    async def WaitProcess(self, tenant: Tenant, request: pb.WaitProcessRequest) -> pb.WaitProcessResponse:
        process_id = _known_id(request.id)
        sandbox = await self.tool_calls.sandbox(tenant, request.thread)
        process = await sandbox.wait_process(process_id, wait_s=_wait_s())
        return pb.WaitProcessResponse(process=process_message(process))

    @unary
    async def RemoveProcess(self, tenant: Tenant, request: pb.RemoveProcessRequest) -> pb.RemoveProcessResponse:
        process = await self._changed(tenant, request, "remove", lambda sandbox: sandbox.remove_process(request.id))
        return pb.RemoveProcessResponse(process=process)


def _place(process: Process) -> tuple[int, str]:
    return process.started_ns, process.id


def _check_start(request: pb.StartProcessRequest) -> tuple[int, int]:
    """Check what goes with the program; return the rows and columns of a terminal."""
    if request.id:
        _known_id(request.id)
    if request.terminal and request.merge_stderr:
        raise InvalidArgument("merge_stderr: a terminal has one stream already; leave it out")
    if request.HasField("size") and not request.terminal:
        raise InvalidArgument("size: only a terminal has one; set terminal or leave it out")
    if request.timeout_ms > _TIMEOUT_LIMIT_MS:
        raise InvalidArgument(f"timeout_ms: {_TIMEOUT_LIMIT_MS:,} at most; 0 means none")
    return _size(request.size) if request.HasField("size") else (_ROWS, _COLUMNS)


def _known_id(process_id: str) -> str:
    if not _ID.fullmatch(process_id):
        raise InvalidArgument(f"id: {process_id[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ - are expected")
    return process_id


def _size(size: pb.WindowSize) -> tuple[int, int]:
    if not (1 <= size.rows <= _SIZE_LIMIT and 1 <= size.columns <= _SIZE_LIMIT):
        raise InvalidArgument(f"size: rows and columns, each 1 to {_SIZE_LIMIT:,}")
    return size.rows, size.columns


def _wait_s() -> float:
    """Return how long to wait, so that the answer is sent before the caller's deadline."""
    deadline = deadline_s()
    if deadline is None:
        return _WAIT_LIMIT_S
    left_s = deadline - asyncio.get_running_loop().time()
    return min(_WAIT_LIMIT_S, max(left_s - _ANSWER_S, left_s / 2, 0.0))


def _whose(tenant: Tenant, thread: str, process_id: str) -> dict[str, str]:
    return {"tenant": tenant.name, "thread": thread or "default", "process": process_id}
