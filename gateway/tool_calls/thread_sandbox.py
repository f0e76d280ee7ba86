"""A thread's files and shell, for the agent's tools. Each operation leases the thread's sandbox.

The sandbox is made on first use. If it was removed because it was idle, or died, it is made again with the same
workspace. Operations on processes do not make one: without a sandbox there are no processes.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Concatenate, NotRequired, ParamSpec, TypedDict, TypeVar, Unpack

from agent.filesystem import OnOutput
from agent.tool_call import CallContext
from agent.tools.paths import WORKSPACE
from gateway.errors import OtherEngine
from gateway.network.door import Entered, Network, no_network
from gateway.policy import Policy
from gateway.storage.engine_store import EngineStore
from gateway.storage.entities import Thread
from gateway.tool_calls.interpreter_turns import interpreter_rules, run_to_the_end, start_failure, turn
from gateway.tool_calls.policy_hook import JUDGED_BY
from gateway.tool_calls.program_check import ProgramCheck
from gateway.tool_calls.refusal_note import refusal_note
from sandbox.client.replies import PROCESSES_LIMIT
from sandbox.engines.engine import Identity
from sandbox.errors import Conflict, EngineUnavailable, Exhausted, NotFound, PostureTooWeak, SandboxError
from sandbox.file_rules import FILE_RULES_LANDLOCK_VERSION, FileRules
from sandbox.interpreter.cell import Cell, CellResult
from sandbox.interpreter.interpreter import InterpreterCall
from sandbox.keeper.leases import Leases
from sandbox.protocols import (
    Entry,
    ExecResult,
    FileSystem,
    OnProgramOutput,
    Process,
    Processes,
    ProcessList,
    ProcessSpec,
    ProgramResult,
    ProgramSpec,
    Shell,
)
from sandbox.sandbox import Sandbox, SandboxSpec

# Threads known to be on this engine. Past the limit they are looked up again.
_KNOWN_LIMIT = 100_000
Claim = Callable[[], Awaitable[None]]
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", Shell, Processes)
# Of code, for the records of its connections: more than they keep, so that a secret at the end is whole.
_CODE_SHOWN_CHARS = 10_000
# Where a failed command says why.
_LAST_PIECES, _LAST_BYTES = 8, 16 * 1024


class CommandOptions(TypedDict):
    """How a command line runs, and how much of its output is shown (agent.filesystem.Shell)."""

    timeout_s: float
    call_id: str
    limit_chars: int
    head_chars: int
    tail_chars: int
    on_output: NotRequired[OnOutput | None]


class PythonOptions(TypedDict):
    """In which interpreter code runs, and how much of its output is shown live (agent.capabilities.python)."""

    interpreter: str
    restart: bool
    timeout_s: float
    live_limit_bytes: int
    on_output: NotRequired[OnOutput | None]


def _on_files(
    method: Callable[Concatenate[FileSystem, P], Awaitable[T]],
) -> Callable[Concatenate[ThreadSandbox, P], Coroutine[Any, Any, T]]:
    """Return a method that does what this one does, on the files of the leased sandbox."""

    async def leased(self: ThreadSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        async with await self._lease() as sandbox:
            result: T = await getattr(sandbox.files, method.__name__)(*args, **options)
            return result

    return leased


def _on_process(
    method: Callable[Concatenate[Processes, str, P], Awaitable[T]],
) -> Callable[Concatenate[ThreadSandbox, str, P], Coroutine[Any, Any, T]]:
    """Return a method that does what this one does, in the sandbox that has the process; NotFound where none lives."""

    async def leased(self: ThreadSandbox, process_id: str, /, *args: P.args, **options: P.kwargs) -> T:
        async with self._leased_with(process_id) as sandbox:
            result: T = await getattr(sandbox.processes, method.__name__)(process_id, *args, **options)
            return result

    return leased


@dataclass(eq=False)
class ThreadSandbox:
    """Satisfies agent.filesystem.FileSystem and agent.filesystem.Shell; programs and processes are for services.

    All that is started is confined by the file rules of what `policy` returns then. Where that has none, those of the
    version that judged the call apply: without them it relied on the kernel. `claim` is awaited before the first
    sandbox is used: the thread's files are on this engine then, or it raises.
    """

    leases: Leases
    spec: SandboxSpec
    policy: Callable[[], Policy]
    claim: Claim | None
    programs: ProgramCheck
    network: Network = no_network

    async def _lease(self) -> AbstractAsyncContextManager[Sandbox]:
        """Return a lease of the sandbox, which is made or started if need be."""
        if self.claim is not None:
            await self.claim()
            self.claim = None
        return self.leases.acquire(self.spec)

    @asynccontextmanager
    async def _leased_with(self, process_id: str) -> AsyncIterator[Sandbox]:
        """Lease the sandbox that has a process; NotFound where none lives."""
        async with self.leases.acquire_existing(self.spec) as sandbox:
            if sandbox is None:
                raise NotFound(
                    f"background process {process_id!r} not found: the thread has no sandbox, and processes end "
                    "with their sandbox"
                )
            yield sandbox

    @asynccontextmanager
    async def leased(self) -> AsyncIterator[Sandbox]:
        """Keep the sandbox leased, made or started as for a call. Raises SandboxError."""
        async with await self._lease() as sandbox:
            yield sandbox

    async def prepare(self) -> str:
        """Have the sandbox, made or started as for a call; return its id."""
        async with await self._lease() as sandbox:
            return sandbox.id

    ls = _on_files(FileSystem.ls)
    stat = _on_files(FileSystem.stat)
    read_lines = _on_files(FileSystem.read_lines)
    write = _on_files(FileSystem.write)
    edit = _on_files(FileSystem.edit)
    glob = _on_files(FileSystem.glob)
    grep = _on_files(FileSystem.grep)
    mkdir = _on_files(FileSystem.mkdir)
    remove = _on_files(FileSystem.remove)
    rename = _on_files(FileSystem.rename)
    read_process = _on_process(Processes.read)
    write_process = _on_process(Processes.write)
    resize_process = _on_process(Processes.resize)
    wait_process = _on_process(Processes.wait)
    remove_process = _on_process(Processes.remove)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async with await self._lease() as sandbox:
            async for chunk in sandbox.files.read(path, offset=offset, length=length):
                yield chunk

    async def read_known(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[tuple[Entry, bytes]]:
        """Stream a file's bytes, each piece with the file it is of; one comes also where no byte does.

        The file is looked at before its first byte is read, and after it was opened where the read begins later: so
        between two reads of the same entry it was not written.
        """
        async with await self._lease() as sandbox:
            entry = None if offset else await sandbox.files.stat(path)
            begun = False
            async for chunk in sandbox.files.read(path, offset=offset, length=length):
                if entry is None:
                    entry = await sandbox.files.stat(path)
                begun = True
                yield entry, chunk
            if not begun:
                yield entry or await sandbox.files.stat(path), b""

    async def execute(
        self, command: str, *, context: CallContext | None = None, **options: Unpack[CommandOptions]
    ) -> ExecResult:
        """Run a command line; a sandbox that cannot be had is an outcome, for it is no fault of the command."""
        try:
            async with await self._lease() as sandbox:
                policy = await self._enforced(sandbox, context)
                async with self.network(sandbox, context, command) as network:
                    shell = _restricted(sandbox.shell, policy, network)
                    done = await shell.execute(command, **options)
                notes = (done.message, _refusal(policy, done), network.refusals, _said_once(sandbox))
                return replace(done, message="; ".join(filter(None, notes))) if any(notes[1:]) else done
        except SandboxError as error:
            return ExecResult(outcome="failed_to_start", message=error.outside)

    async def _enforced(self, sandbox: Sandbox, context: CallContext | None) -> Policy:
        """Return the version whose file rules hold for what a call starts now. Raises PostureTooWeak."""
        policy = self.policy()
        judged_by = None if context is None else context.get(JUDGED_BY)
        if policy.file_rules is None and judged_by is not None:
            policy = judged_by
        if policy.file_rules is not None:
            if sandbox.posture.landlock_version < FILE_RULES_LANDLOCK_VERSION:
                raise PostureTooWeak(
                    "enforcement: kernel needs a kernel with Landlock, Linux 6.2 or later, and the sandbox has none: "
                    "use a newer one, or enforcement: reading"
                )
            await self.programs.check(sandbox, policy)
        return policy

    async def run_program(
        self,
        program: ProgramSpec,
        *,
        stdin: AsyncIterable[bytes] | None,
        on_output: OnProgramOutput,
        context: CallContext | None = None,
    ) -> ProgramResult:
        """Run a program with streams; a sandbox that cannot be had is an outcome, as it is for a command line."""
        leased = False
        try:
            async with await self._lease() as sandbox:
                leased = True
                policy = await self._enforced(sandbox, context)
                async with self.network(sandbox, context, _shown(program.argv)) as network:
                    shell = _restricted(sandbox.shell, policy, network)
                    return await shell.run_program(program, stdin=stdin, on_output=on_output)
        except SandboxError as error:
            # Once leased, what is raised comes from the caller's own stdin or on_output.
            if leased:
                raise
            return ProgramResult("failed_to_start", message=error.outside)

    async def run_python(
        self, code: str, *, context: CallContext | None = None, **options: Unpack[PythonOptions]
    ) -> CellResult:
        """Run code in an interpreter of the sandbox; one that cannot be had, or is lost, is an outcome."""
        named = {name: value for name, value in options.items() if name != "on_output"}
        cell, on_output = Cell(code, **named), options.get("on_output")  # type: ignore[arg-type]  # as they are typed
        try:
            async with await self._lease() as sandbox, turn(sandbox, cell):
                policy = await self._enforced(sandbox, context)
                async with self.network(sandbox, context, f"execute_python: {code[:_CODE_SHOWN_CHARS]}") as network:
                    rules = interpreter_rules(_rules(policy, network))
                    call = InterpreterCall(sandbox.processes, cell, rules, network.environment, on_output)
                    done = await run_to_the_end(call)
                notes = (*done.notes, network.refusals, _said_once(sandbox))
                return replace(done, notes=tuple(filter(None, notes)))
        except SandboxError as error:
            return CellResult("failed_to_start", notes=(start_failure(error),))

    async def start_process(self, spec: ProcessSpec, context: CallContext | None = None) -> Process:
        """Start a background process; Conflict where its id is in use, Exhausted where no more may run."""
        async with await self._lease() as sandbox:
            try:
                policy = await self._enforced(sandbox, context)
                async with self.network(sandbox, context, _shown(spec.argv)) as network:
                    return await _restricted(sandbox.processes, policy, network).start(spec)
            except Conflict as error:
                # The daemon calls both a conflict; the caller has to free another thing for each.
                found = (await sandbox.processes.list()).processes
                running = sum(process.running for process in found)
                if running < PROCESSES_LIMIT or any(process.id == spec.id for process in found):
                    raise
                raise Exhausted(str(error)) from error

    async def list_processes(self) -> ProcessList:
        async with self.leases.acquire_existing(self.spec) as sandbox:
            return ProcessList((), 0) if sandbox is None else await sandbox.processes.list()

    async def signal_process(self, process_id: str, number: int, *, tree: bool = False) -> Process:
        """Send a signal to a process' group, or with `tree` to everything it started."""
        async with self._leased_with(process_id) as sandbox:
            process = await sandbox.processes.signal(process_id, number, tree=tree)
        if process is None:
            raise NotFound(
                "process_id is empty: give the id of a background process, or call kill_strays to end strays"
            )
        return process

    async def kill_strays(self) -> tuple[int, int]:
        """Kill what commands left behind; return how many strays there were, and how many live then."""
        async with self.leases.acquire_existing(self.spec) as sandbox:
            found = 0 if sandbox is None else (await sandbox.processes.list()).strays
            if sandbox is None or not found:
                return 0, 0
            await sandbox.processes.signal("", signal.SIGKILL, tree=True)
            return found, (await sandbox.processes.list()).strays


def _restricted(starter: S, policy: Policy, network: Entered) -> S:
    """Return a shell or processes with the rules and the variables for what they start."""
    if policy.file_rules is None and not network.environment:
        return starter
    return starter.under(_rules(policy, network), network.environment)


def _rules(policy: Policy, network: Entered) -> FileRules | None:
    rules = policy.file_rules
    if rules is None or not network.readable_files:
        return rules
    return replace(rules, readable_files=(*rules.readable_files, *network.readable_files))


def _shown(argv: Sequence[bytes]) -> str:
    return b" ".join(argv).decode(errors="replace")


def _refusal(policy: Policy, done: ExecResult) -> str:
    """Return which rule of the policy probably made a command fail; "" for none."""
    if done.outcome != "exited" or not done.exit_code:
        return ""
    end = b"".join(piece.data for piece in done.output[-_LAST_PIECES:])[-_LAST_BYTES:]
    return refusal_note(policy, end.decode(errors="replace"), WORKSPACE)


def _said_once(sandbox: Sandbox) -> str:
    """Return what this result says of processes that ended with a stop; "" where none did or it was said."""
    ended = sandbox.take_ended_processes()
    if not ended:
        return ""
    return f"the sandbox was stopped before this call: its background processes ({ended}) ended, and /tmp was emptied"


class ThreadEngines:
    """The threads of this process' engine: a thread's workspace is bound to the engine of its first sandbox, for good.

    A gateway on another engine would find no files and make a second, empty workspace. It refuses the thread instead.
    """

    def __init__(self, store: EngineStore, engine: Identity) -> None:
        self._store = store
        self._engine = engine
        self._known: set[str] = set()

    async def refuse_other(self, thread: Thread) -> None:
        """Raise OtherEngine for a thread whose workspace is on another engine; one without a workspace passes."""
        if thread.id in self._known:
            return
        engine = await self._store.engine_of(thread.id)
        if engine is not None:
            try:
                self._check(thread, engine, await self._engine.id())
            except EngineUnavailable:
                return  # calls in it fail anyway, with the reason

    async def claim(self, thread: Thread) -> None:
        """Bind a thread's workspace to this engine; OtherEngine if it is on another."""
        if thread.id in self._known:
            return
        own = await self._engine.id()
        self._check(thread, await self._store.claim(thread.id, own), own)

    def _check(self, thread: Thread, engine: str, own: str) -> None:
        if engine != own:
            raise OtherEngine(
                f"the files of thread {thread.name!r} are on engine {engine}, but this gateway uses {own}: use a "
                "gateway on that engine, or another thread",
                engine=engine,
            )
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        self._known.add(thread.id)
