"""The commands of a session of the OpenAI Agents SDK, also those that outlive the call that started them.

A command is a call of the tool `execute`, whose output is redacted as for any model. With a terminal it is a
background process.
"""

import asyncio
import shlex
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.sandbox import ExecResult
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    PtySessionNotFoundError,
)
from agents.sandbox.session import (
    SandboxSessionState,
)
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
)

from airlock import Client, ToolResult, errors
from gateway.integrations.adapter import NOT_RUN, WORKSPACE, exit_code_of, refusal, rest_of_output, whole_output

_SHELLS = (["sh", "-lc"], ["sh", "-c"])


class AirlockSandboxSessionState(SandboxSessionState):
    """What is stored of a session: its thread; never a key."""

    type: Literal["airlock"] = "airlock"
    thread: str
    is_owned: bool = True
    command_timeout_s: float | None = None


async def streams(client: Client, result: ToolResult) -> tuple[bytes, bytes]:
    """Return the output of a command; of a large one, both streams as one. What was not run is explained in stderr."""
    if refused := refusal(result):
        return b"", f"{refused}\n".encode()
    if result.evicted is not None:
        whole = await whole_output(client, result)
        return (
            (result.content_bytes, f"{rest_of_output(result)}\n".encode()) if whole is None else (whole.encode(), b"")
        )
    stdout, stderr = _shown(result)
    note = b"" if result.exit_code is not None else result.note.encode()
    return stdout, b"\n".join(filter(None, (stderr, note)))


def _shown(result: ToolResult) -> tuple[bytes, bytes]:
    """Return both streams; what is said in place of them, as of a result that a rule withholds, is in the second."""
    if result.stdout_bytes or result.stderr_bytes:
        return result.stdout_bytes, result.stderr_bytes
    return b"", result.content_bytes


@dataclass
class _Running:
    """A command that may outlive the call that started it. `process` is the id of its process if it has a terminal."""

    process: str = ""
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    notify: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[int] | None = None

    def append(self, data: bytes) -> None:
        self.chunks.append(data)
        self.notify.set()


@dataclass(frozen=True)
class Commands:
    """The commands of a session, by the SDK's ids those that run."""

    client: Client
    state: AirlockSandboxSessionState
    running: dict[int, _Running] = field(default_factory=dict)

    async def _line(self, words: list[str]) -> str:
        """Return the command line that the tool `execute` runs in /workspace."""
        line = words[2] if len(words) == 3 and words[:2] in _SHELLS else shlex.join(words)
        names = await self.state.manifest.environment.resolve()
        exports = [f"export {name}={shlex.quote(value)}" for name, value in names.items()]
        root = self.state.manifest.root
        cd = [] if root == WORKSPACE or not self.state.workspace_root_ready else [f"cd {shlex.quote(root)} || exit"]
        return "\n".join([*exports, *cd, line])

    async def _execute(self, words: list[str], timeout_s: float | None, **options: Any) -> ToolResult:
        limit_s = timeout_s or self.state.command_timeout_s
        asked = {"command": await self._line(words), **({"timeout_s": limit_s} if limit_s else {})}
        try:
            return await self.client.call_tool("execute", asked, thread=self.state.thread, **options)
        except errors.AirlockError as error:
            raise ExecTransportError(command=words, cause=error, message=str(error)) from error

    async def run(self, words: list[str], timeout_s: float | None) -> ExecResult:
        """Run a command to its end. Raises ExecTimeoutError, ExecTransportError."""
        result = await self._execute(words, timeout_s)
        if result.outcome == "timed_out":
            raise ExecTimeoutError(command=words, timeout_s=timeout_s, context={"note": result.note})
        stdout, stderr = await streams(self.client, result)
        return ExecResult(stdout=stdout, stderr=stderr, exit_code=NOT_RUN if refusal(result) else exit_code_of(result))

    async def start(self, words: list[str], timeout_s: float | None, *, terminal: bool) -> int:
        """Start a command that may outlive this call and return its id. Raises ExecTransportError."""
        if len(self.running) >= PTY_PROCESSES_MAX:
            raise ExecTransportError(command=words, message=f"{PTY_PROCESSES_MAX} commands run already: end one first")
        running = _Running()
        work = self._follow(running, words) if terminal else self._call(running, words, timeout_s)
        running.task = asyncio.create_task(work)
        running.task.add_done_callback(lambda _: running.notify.set())
        id_ = allocate_pty_process_id(set(self.running))
        self.running[id_] = running
        return id_

    async def write(self, id_: int, text: str) -> None:
        """Type into a terminal; an empty text only checks that there is such a command."""
        running = self._found(id_)
        if not text:
            return
        if not running.process:
            raise RuntimeError("this command has no terminal and takes no input: start it with tty=true")
        with suppress(errors.ProcessEnded):  # its last output says more
            await self.client.write_process(self.state.thread, running.process, text.encode())

    async def update(self, id_: int, wait_ms: int, max_output_tokens: int | None) -> PtyExecUpdate:
        """Return the new output of a command; wait for its end, but no longer than that."""
        running = self._found(id_)
        output, tokens, has_ended = await collect_pty_output(
            output_chunks=running.chunks,
            output_lock=running.lock,
            output_notify=running.notify,
            is_done=lambda: running.task is not None and running.task.done(),
            yield_time_ms=wait_ms,
            max_output_tokens=max_output_tokens,
        )
        if not has_ended or running.task is None:
            return PtyExecUpdate(id_, output, None, tokens)
        del self.running[id_]
        return PtyExecUpdate(None, output, await running.task, tokens)

    async def end_all(self) -> None:
        """End what still runs."""
        ending = [*self.running.values()]
        self.running.clear()
        for running in ending:
            if running.process:
                with suppress(errors.AirlockError):  # it is gone already, or its sandbox is
                    await self.client.remove_process(self.state.thread, running.process)
            if running.task is not None:
                running.task.cancel()
        await asyncio.gather(*(one.task for one in ending if one.task is not None), return_exceptions=True)

    def _found(self, id_: int) -> _Running:
        if id_ not in self.running:
            raise PtySessionNotFoundError(session_id=id_)
        return self.running[id_]

    async def _call(self, running: _Running, words: list[str], timeout_s: float | None) -> int:
        """Make a call of `execute`, pass its output on and return the exit code."""
        given = {"stdout": 0, "stderr": 0}

        def take(stream: str, data: bytes) -> None:
            given[stream] += len(data)
            running.append(data)

        result = await self._execute(words, timeout_s, on_output=take)
        refused = refusal(result)
        # Output is not shown live while a rule of the policy may withhold it.
        for stream, data in zip(given, () if refused else _shown(result), strict=False):
            running.append(data[given[stream] :])
        notes = [refused, result.note if result.exit_code is None else "", rest_of_output(result)]
        if said := "\n".join(filter(None, notes)):
            running.append(f"{said}\n".encode())
        return NOT_RUN if refused else exit_code_of(result)

    async def _follow(self, running: _Running, words: list[str]) -> int:
        """Start a process with a terminal, pass its output on and return the exit code."""
        thread = self.state.thread
        try:
            argv = ["sh", "-c", await self._line(words)]
            running.process = (await self.client.start_process(argv, thread=thread, terminal=True)).id
            async for piece in self.client.process_output(thread, running.process, follow=True):
                running.append(piece.data)
            ended = await self.client.wait_process(thread, running.process)
        except (errors.PermissionDenied, errors.ApprovalPending) as error:
            running.append(f"{error}\n".encode())
            return NOT_RUN
        except errors.AirlockError as error:
            raise ExecTransportError(command=words, cause=error, message=str(error)) from error
        return 128 + (ended.signal or 0) if ended.exit_code is None else ended.exit_code
