"""Programs with streams and background processes: `execute` for services, on the path of every tool call.

Each class runs one call in place of the tools: the policy judges the program as a shell line, and the journal records
the line and how it ended. The streams do not pass through the result.

The line is for judging and for people: a shell that read it would find exactly these words. No shell does. argv goes to
the kernel as it is, nothing in it is ever expanded, and so there is no second reading that could differ from the judged
one. Where a shell has a builtin or a keyword of argv[0]'s name, policy judges that, which is the stricter reading.
"""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from agent import errors as agent_errors
from agent.filesystem import OutputStream
from agent.hooks.hook import OutputFilter
from agent.messages import ToolCall, ToolResult
from agent.tools.call_events import filtered, output_filters
from agent.tools.paths import WORKSPACE, resolve
from agent.tools.tool import ToolContext
from airlock.v1 import process_service_pb2 as pb
from gateway.errors import (
    AirlockError,
    DeadlineExceeded,
    InvalidArgument,
    InvalidPath,
    PermissionDenied,
    TooLarge,
    from_start,
)
from gateway.storage.audit_store import AuditEntry
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.tool_request import REQUEST
from sandbox.errors import SandboxError
from sandbox.protocols import Process, ProcessSpec, ProgramResult, ProgramSpec

TOOL = "execute"
_STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")
# Added to a program's time limit: for making the sandbox first, and for the last output.
_GRACE_S = 60.0
# What one frame to the daemon takes, and half of what Linux does: 1 MiB of text, and room for what each word costs.
PROGRAM_LIMIT_BYTES = 1024 * 1024 + 32 * 1024
_WORD_COST_BYTES = 8
# MAX_ARG_STRLEN of Linux, without the NUL at the end.
_WORD_LIMIT_BYTES = 128 * 1024 - 1
_PATH_LIMIT_BYTES = 4095
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset(
    """case coproc do done elif else esac fi for function if in select then time until while""".split()  # noqa: SIM905 - one a line would take seventeen
)


@dataclass(frozen=True)
class Program:
    """What to run: argv[0] is looked up in PATH, `cwd` is absolute, `env` is added to the sandbox's."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]

    def argv_bytes(self) -> list[bytes]:
        """Return argv as the kernel gets it."""
        return [word.encode() for word in self.argv]

    def line(self) -> str:
        """Return the shell line; the working directory is left out where it is the one that execute has."""
        return " ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.cwd != WORKSPACE:
            yield f"cd -- {shlex.quote(self.cwd)} &&"
        for name, value in self.env.items():
            yield f"{name}={shlex.quote(value)}"
        name = shlex.quote(self.argv[0])
        # Unquoted, a shell takes `if` for a keyword and `A=b` for an assignment.
        yield f"'{name}'" if name in _KEYWORDS or ("=" in name and name == self.argv[0]) else name
        for word in self.argv[1:]:
            yield shlex.quote(word)


def program_of(asked: pb.Program) -> Program:
    """Return a request's program. Raises InvalidArgument, InvalidPath and TooLarge."""
    if not asked.argv or not asked.argv[0]:
        raise InvalidArgument("program.argv is empty, or its first word is; the first word names the program")
    cost_bytes = 0
    for place, word in enumerate(asked.argv):
        cost_bytes += _checked(f"program.argv[{place}]", word)
        _check_total(cost_bytes)
    for name, value in asked.env.items():
        if not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"program.env: {name[:100]!r} is not a valid name: use A-Z a-z 0-9 _, not starting with a digit"
            )
        cost_bytes += _checked(f"program.env[{name[:100]!r}]", value) + len(name)
        _check_total(cost_bytes)
    return Program(tuple(asked.argv), _working_directory(asked.cwd), dict(sorted(asked.env.items())))


def _check_total(cost_bytes: int) -> None:
    """Raise TooLarge; called after each word, so that the rest of a program that is too large is not read."""
    if cost_bytes > PROGRAM_LIMIT_BYTES:
        raise TooLarge(
            f"program: argv and env have more than {PROGRAM_LIMIT_BYTES:,} bytes, {_WORD_COST_BYTES} more counted a "
            "word: pass the rest by standard input or in a file"
        )


def _checked(field: str, text: str) -> int:
    """Return what a word costs in bytes."""
    if "\0" in text:
        raise InvalidArgument(f"{field}: contains a NUL character, which ends a string in the kernel")
    size_bytes = len(text.encode())
    if size_bytes > _WORD_LIMIT_BYTES:
        raise TooLarge(
            f"{field}: has {size_bytes:,} bytes, and Linux allows {_WORD_LIMIT_BYTES:,} per argument: pass it by "
            "standard input or in a file"
        )
    return size_bytes + _WORD_COST_BYTES


def _working_directory(asked: str) -> str:
    """Return where to run, normalised as the paths of tools are."""
    if not asked:
        return WORKSPACE
    if not asked.startswith("/"):
        raise InvalidPath(
            f"program.cwd: {asked[:200]!r} is not an absolute path; did you mean {f'{WORKSPACE}/{asked[:200]}'!r}?"
        )
    if len(asked.encode()) > _PATH_LIMIT_BYTES:
        raise InvalidPath(f"program.cwd: at most {_PATH_LIMIT_BYTES:,} bytes")
    try:
        return resolve(asked)
    except agent_errors.InvalidPath as error:
        raise InvalidPath(f"program.cwd: {error}") from error


@dataclass(eq=False)
class _ProgramCall(ServiceExecutor):
    program: Program
    _filters: list[OutputFilter] | None = field(default=None, init=False)

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Start the program that was judged, unless a hook needs something that a program or a stream cannot do."""
        if (call.arguments or {}).get("command") != self.program.line():
            raise PermissionDenied(
                "a hook rewrote the command line, but a program runs only with the argv that was sent: use the tool "
                "execute instead"
            )
        self._filters = output_filters(context.run.hooks) if context.run is not None else []
        if self._filters is None:
            raise PermissionDenied(
                "a hook or a rule on results has to see the whole result, and this call streams its output: use the "
                "tool execute instead"
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
        """Count the input, and keep its error: that is the caller's, and must not look like the program's."""
        try:
            async for chunk in stdin:
                self.input_bytes += len(chunk)
                yield chunk
        except Exception as error:
            self._stdin_error = error
            raise

    async def _take(self, stream: OutputStream, data: bytes) -> None:
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
