"""`airlock` as a sandbox backend of deepagents: its file tools and its `execute` run in the sandbox of one thread.

    agent = create_deep_agent(model=..., backend=AirlockBackend(thread="t1"))

AIRLOCK_ADDRESS (default 127.0.0.1:7443) and AIRLOCK_API_KEY name the gateway and the key, which needs the scopes `tool`
and `files`. See docs/integrations.md.
"""

import uuid
from typing import Self

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    SandboxBackendProtocol,
    WriteResult,
)
from typing_extensions import override

from airlock.background_loop import BackgroundLoop
from gateway.integrations.adapter import WORKSPACE, connect
from gateway.integrations.deepagents_operations import Operations


class AirlockBackend(SandboxBackendProtocol):
    """The sandbox of a thread, by default of a new one. Usable from any thread and event loop; `close()` it."""

    def __init__(self, thread: str = "", *, address: str = "", api_key: str = "") -> None:
        self.thread = thread or f"deepagents/{uuid.uuid4().hex}"
        self._operations = Operations(connect(address, api_key), self.thread)
        self._loop = BackgroundLoop()

    @property
    def id(self) -> str:
        """The name of the thread."""
        return self.thread

    def close(self) -> None:
        """Close the connection. The sandbox stops after its idle timeout; the thread keeps its files."""
        self._loop.close(self._operations.client.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return self._loop.run(self._operations.execute(command, timeout))

    @override
    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return await self._loop.awaited(self._operations.execute(command, timeout))

    @override
    def ls(self, path: str) -> LsResult:
        return self._loop.run(self._operations.ls(path))

    @override
    async def als(self, path: str) -> LsResult:
        return await self._loop.awaited(self._operations.ls(path))

    @override
    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._loop.run(self._operations.read(file_path, offset, limit))

    @override
    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self._loop.awaited(self._operations.read(file_path, offset, limit))

    @override
    def write(self, file_path: str, content: str) -> WriteResult:
        return self._loop.run(self._operations.write(file_path, content))

    @override
    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await self._loop.awaited(self._operations.write(file_path, content))

    @override
    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._loop.run(self._operations.edit(file_path, old_string, new_string, replace_all=replace_all))

    @override
    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return await self._loop.awaited(
            self._operations.edit(file_path, old_string, new_string, replace_all=replace_all)
        )

    @override
    def delete(self, file_path: str) -> DeleteResult:
        return self._loop.run(self._operations.delete(file_path))

    @override
    async def adelete(self, file_path: str) -> DeleteResult:
        return await self._loop.awaited(self._operations.delete(file_path))

    @override
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._loop.run(self._operations.grep(pattern, path or WORKSPACE, glob, max_count))

    @override
    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return await self._loop.awaited(self._operations.grep(pattern, path or WORKSPACE, glob, max_count))

    @override
    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._loop.run(self._operations.glob(pattern, path or WORKSPACE))

    @override
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await self._loop.awaited(self._operations.glob(pattern, path or WORKSPACE))

    @override
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._loop.run(self._operations.upload(files))

    @override
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._loop.awaited(self._operations.upload(files))

    @override
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._loop.run(self._operations.download(paths))

    @override
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._loop.awaited(self._operations.download(paths))
