"""ProcessService: programs with streams, and background processes, in a thread's sandbox.

What starts something is a judged call. What follows is about what the tenant itself started, in its own thread: it is
bound to both, not judged again. What of it is audited takes its place in the tenant's minute, as calls do.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import structlog
from pydantic import JsonValue

from gateway.audit.process_audit import process_entry
from gateway.errors import Conflict, InvalidArgument, TooLarge
from gateway.identity.call_credentials import Context
from gateway.services.process_messages import failure, process_message
from gateway.services.streamed_program import StreamedPrograms
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.support.clock import MakeId, make_id
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenant_limit import TenantLimit
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.program import program_of
from gateway.tool_calls.program_calls import TOOL, ProcessStart, start_arguments
from gateway.tool_calls.requested_programs import RequestedPrograms, made_process_id, program_request
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import ToolCalls
from gateway.v1 import process_service_pb2 as pb
from gateway.v1 import process_service_pb2_grpc as grpc_pb
from sandbox.client.process_replies import PROCESSES_LIMIT
from sandbox.process import ProcessSpec

# Each holds its bytes here until the process reads.
_WRITES_OF_A_TENANT = 16
_WRITE_LIMIT_BYTES = 1024 * 1024
_TIMEOUT_LIMIT_MS = 7 * 86_400_000
_WAIT_LIMIT_S = 60.0
# A page of output that is followed is waited for so long; each wait shows the thread's sandbox to be in use.
_FOLLOW_WAIT_S = 20.0
_EMPTY_PAGE_PAUSE_S = 0.05
# The answer to a wait must be on its way before the caller's own deadline.
_ANSWER_S = 1.0
_ROWS, _COLUMNS, _SIZE_LIMIT = 24, 80, 4096
_SIGNAL_LIMIT = 64
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
log = structlog.get_logger(__name__)


class ProcessService(grpc_pb.ProcessServiceServicer):
    """Runs programs."""

    scope = "tool"
    works = ("RunProgram",)
    waits = ("WaitProcess",)

    def __init__(
        self,
        tool_calls: ToolCalls,
        authenticate: Authenticator,
        requested: RequestedPrograms,
        ids: MakeId = make_id,
    ) -> None:
        self._tool_calls = tool_calls
        self._requested = requested
        self._programs = StreamedPrograms(tool_calls, requested)
        self._writes = TenantLimit(_WRITES_OF_A_TENANT, "writes to processes")
        self._ids = ids
        self.authenticate = authenticate

    @streaming
    async def RunProgram(  # noqa: N802
        self, tenant: Tenant, request: AsyncIterator[pb.RunProgramRequest], context: Context
    ) -> AsyncIterator[pb.RunProgramResponse]:
        """Run a program; a client that goes away ends it."""
        del context
        async with contextlib.aclosing(self._programs.run(tenant, request)) as said:
            async for one in said:
                yield one

    @unary
    async def StartProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.StartProcessRequest, context: Context
    ) -> pb.StartProcessResponse:
        """Start a background process."""
        del context
        program = program_of(request.program)
        rows, columns = _check_start(request)
        how_started: dict[str, JsonValue] = {
            "id": request.id,
            "terminal": request.terminal,
            "size": [rows, columns],
            "stdin": request.stdin,
            "merge_stderr": request.merge_stderr,
            "timeout_ms": request.timeout_ms,
        }
        thread = request.program.thread
        request_ = program_request(request.request_id, "StartProcess", thread, program, how_started)
        process_id = request.id or (self._ids("proc") if request_ is None else made_process_id(tenant, request_))
        sandbox = await self._tool_calls.sandbox(tenant, thread)
        if request_ is not None:
            process = await self._requested.process(tenant, request_, sandbox, process_id, program.argv_bytes())
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
        made: list[ProcessStart] = []

        def executor(sandbox: ThreadSandbox) -> ProcessStart:
            made.append(ProcessStart(sandbox, program, spec))
            return made[0]

        arguments = start_arguments(program, request.id, terminal=request.terminal, stdin=request.stdin)
        finished = await self._tool_calls.call(tenant, thread, TOOL, arguments, executor=executor, request=request_)
        if request_ is not None and request_.taken:
            raise request_.in_progress()
        process = made[0].process if made else None
        if request_ is not None and not request.id and made and isinstance(made[0].error, Conflict):
            # No other request makes this id: an attempt whose caller went away has started it just now.
            process = await self._requested.kept(sandbox, process_id, program.argv_bytes())
        if process is None:
            raise failure(finished, made[0].error if made else None)
        return pb.StartProcessResponse(process=process_message(process))

    @unary
    async def ListProcesses(  # noqa: N802
        self, tenant: Tenant, request: pb.ListProcessesRequest, context: Context
    ) -> pb.ListProcessesResponse:
        """List a thread's background processes."""
        del context
        wanted = request.running if request.HasField("running") else None
        size = page_size(request.page_size, usual=PROCESSES_LIMIT)
        query = ("processes", tenant.name, request.thread, wanted)
        after = place_of(request.page_token, *query)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        found = await sandbox.list_processes()
        processes = sorted(
            (one for one in found.processes if wanted is None or one.running == wanted),
            key=lambda one: (one.started_ns, one.id),
        )
        rest = [one for one in processes if after is None or (one.started_ns, one.id) > after]
        shown, token = paged(rest, size, lambda one: (one.started_ns, one.id), *query)
        return pb.ListProcessesResponse(
            processes=[process_message(one) for one in shown], strays=found.strays, next_page_token=token
        )

    @streaming
    async def ReadProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.ReadProcessRequest, context: Context
    ) -> AsyncIterator[pb.ReadProcessResponse]:
        """Stream output from an offset: what there is now, or with follow until there can be no more."""
        del context
        process_id = _known_id(request.id)
        reader = await self._tool_calls.process_reader(tenant, request.thread)
        offset, stop_at = request.offset, -1
        while True:
            page = await reader.read(
                process_id,
                stderr=request.stderr,
                offset=offset,
                wait_s=_FOLLOW_WAIT_S if request.follow else 0.0,
            )
            if page.data:
                yield pb.ReadProcessResponse(offset=page.offset, data=page.data)
            elif request.follow and not page.end:
                await asyncio.sleep(_EMPTY_PAGE_PAUSE_S)  # a daemon that does not wait must not spin the gateway
            offset = page.offset + len(page.data)
            if stop_at < 0:
                stop_at = page.size_bytes  # else a process that writes as fast as it is read would have no end
            if page.end or (not request.follow and (not page.data or offset >= stop_at)):
                return

    @unary
    async def WriteProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.WriteProcessRequest, context: Context
    ) -> pb.WriteProcessResponse:
        """Write to standard input; answered when the process' pipe has taken it."""
        _known_id(request.id)
        if len(request.data) > _WRITE_LIMIT_BYTES:
            raise TooLarge(f"data: {_WRITE_LIMIT_BYTES:,} bytes at most; write the rest in further calls")
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        with self._writes.hold(tenant.name):
            return await self._write(sandbox, tenant, request, context)

    async def _write(
        self, sandbox: ThreadSandbox, tenant: Tenant, request: pb.WriteProcessRequest, context: Context
    ) -> pb.WriteProcessResponse:
        process_id = request.id
        await self._tool_calls.take_place(tenant)
        log.debug("process input", **_whose(tenant, request.thread, process_id), bytes=len(request.data))
        process = await sandbox.write_process(
            process_id,
            request.data,
            end=request.end,
            wait_s=_wait_s(context),
            offset=request.offset if request.HasField("offset") else None,
            request_id=request.request_id,
        )
        await self._tool_calls.record(process_entry(tenant, request.thread, "write", process_id, len(request.data)))
        return pb.WriteProcessResponse(process=process_message(process))

    @unary
    async def ResizeProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.ResizeProcessRequest, context: Context
    ) -> pb.ResizeProcessResponse:
        """Change a window's size."""
        del context
        process_id = _known_id(request.id)
        rows, columns = _size(request.size)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        await self._tool_calls.take_place(tenant)
        process = await sandbox.resize_process(process_id, rows, columns)
        await self._tool_calls.record(process_entry(tenant, request.thread, "resize", process_id))
        return pb.ResizeProcessResponse(process=process_message(process))

    @unary
    async def SignalProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.SignalProcessRequest, context: Context
    ) -> pb.SignalProcessResponse:
        """Send a signal to a process."""
        del context
        process_id = _known_id(request.id)
        if not 1 <= request.signal <= _SIGNAL_LIMIT:
            raise InvalidArgument(f"signal: a number of Linux is expected, 1 to {_SIGNAL_LIMIT}; 15 asks to end")
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        await self._tool_calls.take_place(tenant)
        log.debug("process signal", **_whose(tenant, request.thread, process_id), signal=request.signal)
        process = await sandbox.signal_process(process_id, request.signal, tree=request.tree)
        await self._tool_calls.record(
            process_entry(tenant, request.thread, "signal", process_id, signal=request.signal, tree=request.tree)
        )
        return pb.SignalProcessResponse(process=process_message(process))

    @unary
    async def KillStrays(  # noqa: N802
        self, tenant: Tenant, request: pb.KillStraysRequest, context: Context
    ) -> pb.KillStraysResponse:
        """Kill what commands left behind."""
        del context
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        log.debug("strays are killed", tenant=tenant.name, thread=request.thread or "default")
        await self._tool_calls.take_place(tenant)
        found, left = await sandbox.kill_strays()
        if found:  # else nothing was done
            await self._tool_calls.record(process_entry(tenant, request.thread, "kill_strays", left=left))
        return pb.KillStraysResponse(left=left)

    @unary
    async def WaitProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.WaitProcessRequest, context: Context
    ) -> pb.WaitProcessResponse:
        """Wait for the end of a process."""
        process_id = _known_id(request.id)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        process = await sandbox.wait_process(process_id, wait_s=_wait_s(context))
        return pb.WaitProcessResponse(process=process_message(process))

    @unary
    async def RemoveProcess(  # noqa: N802
        self, tenant: Tenant, request: pb.RemoveProcessRequest, context: Context
    ) -> pb.RemoveProcessResponse:
        """Kill what a process started, and forget it."""
        del context
        process_id = _known_id(request.id)
        sandbox = await self._tool_calls.sandbox(tenant, request.thread)
        await self._tool_calls.take_place(tenant)
        process = await sandbox.remove_process(process_id)
        await self._tool_calls.record(process_entry(tenant, request.thread, "remove", process_id))
        return pb.RemoveProcessResponse(process=process_message(process))


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


def _wait_s(context: Context) -> float:
    """Return how long to wait, so that the answer is there before the caller's deadline."""
    left_s: float | None = context.time_remaining()
    return _WAIT_LIMIT_S if left_s is None else min(_WAIT_LIMIT_S, max(left_s - _ANSWER_S, left_s / 2, 0.0))


def _whose(tenant: Tenant, thread: str, process_id: str) -> dict[str, str]:
    return {"tenant": tenant.name, "thread": thread or "default", "process": process_id}
