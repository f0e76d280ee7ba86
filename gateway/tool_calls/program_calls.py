"""Programs with streams and background processes: `execute` for services, on the path of every tool call.

Each class runs one call in place of the tools: the policy judges the program as a shell line, and the journal records
the line and how it ended. The streams do not pass through the result.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from agent.filesystem import OutputStream
from agent.hooks.hook import OutputFilter
from agent.messages import ToolCall, ToolResult
from agent.tools.call_events import filtered, output_filters
from agent.tools.tool import ToolContext
from gateway.errors import AirlockError, DeadlineExceeded, PermissionDenied, from_start
from gateway.storage.audit_store import AuditEntry
from gateway.tool_calls.program import Program
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.tool_request import REQUEST
from sandbox.errors import SandboxError
from sandbox.protocols import Process, ProcessSpec, ProgramResult, ProgramSpec

TOOL = "execute"
_STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")
# Added to a program's time limit: for making the sandbox first, and for the last output.
_GRACE_S = 60.0


@dataclass(eq=False)
class _ProgramCall(ServiceExecutor):
    """One program."""

    program: Program
    _filters: list[OutputFilter] | None = field(default=None, init=False)

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Start the program that was judged, unless a hook needs something that a program or a stream cannot do."""
        if (call.arguments or {}).get("command") != self.program.line():
            raise PermissionDenied(
                "a hook rewrote the command line, and a program cannot be run as another line than its own: call the "
                "tool execute with a line instead"
            )
        self._filters = output_filters(context.run.hooks) if context.run is not None else []
        if self._filters is None:
            raise PermissionDenied(
                "a hook or a rule on results judges results as a whole, and a stream would be past it: call the tool "
                "execute, whose result is redacted as a whole"
            )
        return await self._start(context)

    async def _start(self, context: ToolContext) -> ToolResult:
        raise NotImplementedError


@dataclass(frozen=True)
class EndedProgram:
    """How a program ended; `call_id` is its id in the journal."""

    call_id: str
    result: ProgramResult


@dataclass(eq=False)
class ProgramRun(_ProgramCall):
    """Runs a program to its end. The queue `pieces` is short, so a slow client slows the program, not the gateway."""

    audit_kind = "program"
    spec: ProgramSpec
    pieces: asyncio.Queue[tuple[OutputStream, bytes] | AirlockError | None]
    stdin: AsyncIterator[bytes] | None
    moved_bytes: int = 0
    ended: EndedProgram | None = None
    _deadline_s: float = 0.0
    _stdin_error: Exception | None = None

    async def _start(self, context: ToolContext) -> ToolResult:
        self._deadline_s = asyncio.get_running_loop().time() + self.spec.timeout_s + _GRACE_S
        try:
            result = await self.sandbox.run_program(
                self.spec,
                stdin=self._watched(self.stdin) if self.stdin is not None else None,
                on_output=self._take,
                context=context.hooks,
            )
        finally:
            # Whatever the program made of it.
            if self._stdin_error is not None:
                raise self._stdin_error from None
        for stream in _STREAMS:
            rest = await filtered(self._filters or (), stream, b"", cut=result.outcome != "exited")
            await self._hand_on(stream, rest)
        self.ended = EndedProgram(context.call_id, result)
        request = context.hooks.get(REQUEST)
        if request is not None:
            request.program = result
        return ToolResult(
            content=_summary(result).encode(),
            outcome=result.outcome,
            is_error=result.outcome != "exited" or result.exit_code != 0,
            exit_code=result.exit_code,
        )

    async def _watched(self, stdin: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Keep an error of the input: it is the caller's, and must not look like the program's."""
        try:
            async for chunk in stdin:
                yield chunk
        except Exception as error:
            self._stdin_error = error
            raise

    async def _take(self, stream: OutputStream, data: bytes) -> None:
        """Redact a piece and queue it."""
        await self._hand_on(stream, await filtered(self._filters or (), stream, data))

    async def _hand_on(self, stream: OutputStream, data: bytes) -> None:
        """Queue a piece; while the queue is full the program waits, up to its time limit."""
        if not data:
            return
        try:
            async with asyncio.timeout_at(self._deadline_s):
                await self.pieces.put((stream, data))
                self.moved_bytes += len(data)
        except TimeoutError:
            raise DeadlineExceeded(
                "the output was not read before the program's time limit passed; read it as it arrives"
            ) from None


@dataclass(eq=False)
class ProcessStart(_ProgramCall):
    """Starts a background process; the call is over when it runs."""

    audit_kind = "process"
    spec: ProcessSpec
    process: Process | None = None

    def audited(self, entry: AuditEntry) -> AuditEntry:
        entry = super().audited(entry)
        return replace(entry, details={**entry.details, "process_id": self.spec.id})

    async def _start(self, context: ToolContext) -> ToolResult:
        try:
            self.process = await self.sandbox.start_process(self.spec, context.hooks)
        except SandboxError as error:
            raise from_start(error) from error
        return ToolResult(content=f"started in the background as process {self.spec.id}".encode())


def run_arguments(program: Program, timeout_s: float, *, stdin: bool) -> Mapping[str, JsonValue]:
    """Return what policy judges and the journal keeps of a program that is run."""
    arguments: dict[str, JsonValue] = {"command": program.line(), "timeout_s": timeout_s}
    return arguments | {"stdin": True} if stdin else arguments


def start_arguments(program: Program, asked_id: str, *, terminal: bool, stdin: bool) -> Mapping[str, JsonValue]:
    """Return what policy judges and the journal keeps of a process that is started.

    An id that the caller did not ask for is none of them: a call that is made again once it was approved is the same.
    """
    options = {"terminal": terminal, "stdin": stdin}
    wanted = {name: True for name, value in options.items() if value}
    return {"command": program.line(), "background": asked_id or True, **wanted}


def _summary(result: ProgramResult) -> str:
    """Return what hooks are shown in place of output that went past them."""
    ended = result.outcome if result.exit_code is None else f"{result.outcome} {result.exit_code}"
    said = f": {result.message}" if result.message else ""
    return f"{ended} after {result.output_bytes} bytes of output, which were streamed{said}"
