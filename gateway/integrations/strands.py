"""A thread of Airlock as a sandbox of strands-agents.

    agent = Agent(model, sandbox=AirlockSandbox())

The agent gets the tools sandbox_shell and sandbox_file_editor; the policy judges what they do as `execute`, `read_file`
and the like.

AIRLOCK_ADDRESS and AIRLOCK_API_KEY name the gateway and the key, unless a client is given. See docs/integrations.md.

Failures of the gateway or a sandbox are raised, never returned: a result is what the program itself did.
"""

import asyncio
import codecs
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from strands.sandbox import ExecutionResult, FileInfo, Sandbox, StreamChunk, StreamType
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.types.tools import AgentTool
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.file_editor.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION
from strands.vended_tools.shell import make_shell
from strands.vended_tools.shell.types import SANDBOX_SHELL_DESCRIPTION
from typing_extensions import override

from airlock import Client, FileEntry
from airlock.background_loop import shared_loop
from gateway.integrations.adapter import WORKSPACE, connect, in_workspace
from gateway.integrations.os_errors import os_errors
from gateway.integrations.programs import exit_code, explained, run_program


class AirlockSandbox(Sandbox):
    """A thread, by default one of its own. Relative paths start at /workspace.

    It can be used from several threads and event loops; a client that is given must not be used elsewhere.
    """

    def __init__(self, airlock: Client | None = None, *, thread: str = "") -> None:
        self._airlock = airlock or connect("", "")
        self.thread = thread or f"strands/{uuid.uuid4().hex}"

    @override
    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a line in a shell; without `timeout`, the policy's limits.timeout_s applies."""
        async for said in self._run(["/bin/sh", "-c", command], b"", timeout, cwd, env):
            yield said

    @override
    async def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a program of a language, which names its interpreter, such as python3 or node."""
        async for said in self._run([language, "-"], code.encode(), timeout, cwd, env):
            yield said

    @override
    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        with os_errors(path):
            return await shared_loop().awaited(self._airlock.read_file(self.thread, in_workspace(path)))

    @override
    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        with os_errors(path):
            await shared_loop().awaited(self._airlock.write_file(self.thread, in_workspace(path), content))

    @override
    async def remove_file(self, path: str, **kwargs: Any) -> None:
        with os_errors(path):
            await shared_loop().awaited(self._airlock.remove_file(self.thread, in_workspace(path)))

    @override
    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        async def listed() -> list[FileEntry]:
            return [entry async for entry in self._airlock.list_files(self.thread, in_workspace(path))]

        try:
            with os_errors(path):
                entries = await shared_loop().awaited(listed())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SandboxPathNotFoundError(path) from error
        return [_file_info(entry) for entry in entries]

    @override
    def get_tools(self) -> list[AgentTool]:
        """Return a shell and a file editor that work in this sandbox."""
        place = f"an isolated sandbox. Working directory: {WORKSPACE}."
        return [
            make_file_editor(
                sandbox=self,
                name="sandbox_file_editor",
                description=f"{DEFAULT_FILE_EDITOR_DESCRIPTION} Files are in {place}",
            ),
            make_shell(sandbox=self, name="sandbox_shell", description=f"{SANDBOX_SHELL_DESCRIPTION} Runs in {place}"),
        ]

    async def _run(
        self, argv: list[str], stdin: bytes, timeout: float | None, cwd: str | None, env: dict[str, str] | None
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a program and yield its output as it arrives, then its result. Closing the generator ends the program."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[StreamChunk | None] = asyncio.Queue()
        output = {"stdout": _Text("stdout"), "stderr": _Text("stderr")}

        def take(stream: str, data: bytes) -> None:
            if chunk := output[stream].chunk(data):
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        given = {"thread": self.thread, "stdin": stdin, "cwd": in_workspace(cwd or "."), "env": env}
        run = run_program(self._airlock, argv, timeout, on_output=take, **given)
        running = asyncio.create_task(shared_loop().awaited(run))
        running.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            with os_errors(argv[0]):
                result = await running
            for text in output.values():
                if chunk := text.chunk(b"", final=True):
                    yield chunk
            stdout, stderr = (text.text() for text in output.values())
            if result.outcome == "timed_out":
                raise SandboxTimeoutError(round(result.duration_ms / 1000, 1), stdout, stderr)
            yield ExecutionResult(exit_code(result, argv[0]), stdout, explained(stderr, result, argv[0]))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class _Text:
    """The text of a stream; a character may come in two pieces, and bytes that are not UTF-8 are replaced."""

    def __init__(self, stream: StreamType) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []

    def chunk(self, data: bytes, *, final: bool = False) -> StreamChunk | None:
        """Return what these bytes add, None for nothing yet."""
        piece = self._decoder.decode(data, final)
        self._pieces.append(piece)
        return StreamChunk(piece, self._stream) if piece else None

    def text(self) -> str:
        return "".join(self._pieces)


def _file_info(entry: FileEntry) -> FileInfo:
    """Return an entry as strands has it: what is behind a symbolic link is not known."""
    is_dir = None if entry.kind == "symlink" else entry.kind == "directory"
    return FileInfo(entry.name, is_dir, entry.size_bytes if entry.kind == "file" else None)
