"""What a sandbox offers, however it is reached: its files, its shell, its background processes.

RemoteFS, RemoteShell and RemoteProcesses satisfy these through a daemon, LocalFS on this machine. agent/filesystem.py
asks for less of a file system and of a shell, and does not import these: what satisfies these satisfies it.

Every method raises SandboxError subclasses: FileError for what a kernel refuses, DaemonLost when the sandbox is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol

from sandbox.file_rules import FileRules
from sandbox.filesystem import EditResult, EntriesPage, Entry, ExecResult, GrepPage, LinesPage, OnOutput
from sandbox.process import OnProgramOutput, Process, ProcessList, ProcessPage, ProcessSpec, ProgramResult, ProgramSpec


class FileSystem(Protocol):
    """The files of a sandbox, by absolute paths. No method follows a symbolic link."""

    async def ls(self, path: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage: ...
    async def stat(self, path: str) -> Entry: ...
    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]: ...
    async def read_lines(
        self, path: str, *, offset: int = 0, limit: int = 2000, limit_bytes: int = 65536
    ) -> LinesPage: ...
    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> Entry: ...
    async def edit(self, path: str, old_text: bytes, new_text: bytes, *, replace_all: bool = False) -> EditResult: ...
    async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> EntriesPage: ...
    async def grep(
        self, path: str, pattern: str, *, include: str = "", offset: int = 0, limit: int = 200, timeout_s: float = 10.0
    ) -> GrepPage: ...
    async def mkdir(self, path: str) -> None: ...
    async def remove(self, path: str, *, recursive: bool = False) -> None: ...
    async def rename(self, path: str, new_path: str) -> None: ...


class Shell(Protocol):
    """Runs commands and programs; cancelling the await kills everything they started. No outcome is an exception."""

    def under(self, rules: FileRules) -> Shell:
        """Return this shell with file rules enforced on everything it starts."""

    async def execute(  # noqa: PLR0913 - how a line runs, and how much of its output is shown
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: OnOutput | None = None,
        context: object = None,
    ) -> ExecResult:
        """Run `/bin/sh -c command` in the workspace; output past `limit_chars` stays there, in a file."""

    async def run_program(
        self, program: ProgramSpec, *, stdin: AsyncIterable[bytes] | None, on_output: OnProgramOutput
    ) -> ProgramResult:
        """Run a program with streams. Exceptions of `stdin` and `on_output` propagate."""


class Processes(Protocol):
    """Background processes: each lives until it ends, is removed, or its sandbox goes. See remote_processes.py."""

    def under(self, rules: FileRules) -> Processes: ...
    async def start(self, spec: ProcessSpec) -> Process: ...
    async def list(self) -> ProcessList: ...
    async def read(
        self, process_id: str, *, stderr: bool = False, offset: int, limit_bytes: int = 256 * 1024, wait_s: float = 0
    ) -> ProcessPage: ...
    async def write(
        self,
        process_id: str,
        data: bytes,
        *,
        end: bool = False,
        wait_s: float,
        offset: int | None = None,
        request_id: str = "",
    ) -> Process: ...
    async def resize(self, process_id: str, rows: int, columns: int) -> Process: ...
    async def signal(self, process_id: str, number: int, *, tree: bool = False) -> Process | None: ...
    async def wait(self, process_id: str, *, wait_s: float) -> Process: ...
    async def remove(self, process_id: str) -> Process: ...
