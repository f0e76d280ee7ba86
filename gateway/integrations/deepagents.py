"""`airlock` as a sandbox backend of deepagents: its file tools and its `execute` run in the sandbox of one thread.

    agent = create_deep_agent(model=..., backend=AirlockBackend(thread="t1"))

AIRLOCK_ADDRESS (default 127.0.0.1:7443) and AIRLOCK_API_KEY name the gateway and the key, which needs the scopes `tool`
and `files`. See docs/integrations.md.

Each operation is a tool call under the tenant's policy. What the model can act on (no such file, a denial, a call that
waits for an approval) is a result that says so; that the gateway or the sandbox is lost is raised.
"""

import asyncio
import base64
import json
import os
import posixpath
import re
import threading
import time
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    SandboxBackendProtocol,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES
from deepagents.backends.utils import (
    EMPTY_OLD_STRING_ERROR,
    InvalidGlobPatternError,
    _get_backend_read_file_type,
    compile_grep_include_glob,
    normalize_read_bounds,
)
from typing_extensions import override

from gateway import errors
from gateway.client import Client, Evicted, FileEntry, ToolResult
from gateway.integrations.refusals import refusal

T = TypeVar("T")

_WORKSPACE = "/workspace"
_OUTPUT_LIMIT_BYTES = 1024 * 1024
_EDITED_LIMIT_BYTES = 32 * 1024 * 1024
_MATCH_LIMIT = 10_000
_SEARCH_S = 25.0
"""Shorter than the time after which deepagents gives a search up and shows nothing of it."""
_NOT_RUN = 126
_EXIT_CODES: Mapping[str, int] = {"timed_out": 124, "out_of_memory": 137}
"""Of commands that have none of their own, as a shell has them."""
_CODES: Mapping[type[errors.AirlockError], str] = {
    errors.NotFound: FILE_NOT_FOUND,
    errors.IsADirectory: IS_DIRECTORY,
    errors.NotADirectory: INVALID_PATH,
    errors.InvalidPath: INVALID_PATH,
    errors.PermissionDenied: PERMISSION_DENIED,
}
# What is about the file or the policy. Other errors are raised: the model can do nothing about them.
_SHOWN = (
    *(errors.NotFound, errors.IsADirectory, errors.NotADirectory, errors.InvalidPath, errors.PermissionDenied),
    *(errors.ApprovalPending, errors.Conflict, errors.NoSpace, errors.TooLarge, errors.InvalidArgument),
)
_NEXT_READ = re.compile(r"Next: read_file (\{.*\})\]$", re.MULTILINE)
_NEXT_GREP = re.compile(r"Next: grep (\{.*\})\]$", re.MULTILINE)
_MATCH = re.compile(r"(.*?):(\d+):(.*)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[\w*.-]+")  # means the same to deepagents and to the tool `grep`
_REPLACED = re.compile(r"replaced (\d+) ")


class _LoopThread:
    """An event loop in a thread of its own, so that one client serves threads and event loops alike."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="airlock", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end; cancelling the await cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@dataclass(frozen=True)
class _Operations:
    """The operations of a backend on a thread."""

    client: Client
    thread: str

    async def execute(self, command: str, timeout_s: int | None) -> ExecuteResponse:
        """Run a command; `timeout_s` None or 0: as long as the tool `execute` takes without one."""
        asked = {"command": command, **({"timeout_s": timeout_s} if timeout_s else {})}
        result = await self.client.call_tool("execute", asked, thread=self.thread)
        if refused := refusal(result):
            return ExecuteResponse(refused, _NOT_RUN)
        exit_code = _EXIT_CODES.get(result.outcome, 1) if result.exit_code is None else result.exit_code
        notes = [result.note] if result.exit_code is None and result.note else []
        if result.evicted is None:
            return ExecuteResponse("\n".join([result.content, *notes]), exit_code)
        whole = await self._evicted(result.evicted)
        truncated = whole is None or result.evicted.incomplete
        if truncated:
            notes.append(f"[all {result.evicted.size_bytes} bytes of the output are in {result.evicted.path}]")
        return ExecuteResponse("\n".join([whole or result.content, *notes]), exit_code, truncated)

    async def _evicted(self, evicted: Evicted) -> str | None:
        """Return a large output, read in pages with secrets redacted; None if it is too large, or denied."""
        if evicted.size_bytes > _OUTPUT_LIMIT_BYTES:
            return None
        pages: list[str] = []
        asked: dict[str, Any] = {"path": evicted.path, "byte_offset": 0}
        while asked:
            page = await self.client.call_tool("read_file", asked, thread=self.thread)
            if page.is_error or page.verdict != "allow":
                return None
            pages.append(page.content)
            asked = _next_call(_NEXT_READ, page)
        return "".join(pages)

    async def ls(self, path: str) -> LsResult:
        try:
            return LsResult(entries=[_info(path, one) async for one in self.client.list_files(self.thread, path)])
        except _SHOWN as error:
            return LsResult(error=_said(path, error))

    async def read(self, path: str, offset: int, limit: int) -> ReadResult:
        """Return a page as the tool `read_file` shows it: 64 KiB at most, and secrets redacted."""
        if _get_backend_read_file_type(path) != "text":
            return await self._read_binary(path)
        offset, limit = normalize_read_bounds(offset, limit)
        if not limit:
            return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
        asked = {"path": path, "offset": offset, "limit": min(limit, _MATCH_LIMIT)}
        result = await self.client.call_tool("read_file", asked, thread=self.thread)
        if refused := refusal(result):
            return ReadResult(error=f"File '{path}': {refused}")
        if result.is_error:
            is_binary = " is binary: " in result.content
            return await self._read_binary(path) if is_binary else ReadResult(error=_failed(path, result))
        return _page(result, offset)

    async def _read_binary(self, path: str) -> ReadResult:
        try:
            data = await self.client.read_file(self.thread, path, limit_bytes=MAX_BINARY_BYTES + 1)
        except _SHOWN as error:
            return ReadResult(error=_said(path, error))
        if len(data) > MAX_BINARY_BYTES:
            said = f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
            return ReadResult(error=f"File '{path}': {said}")
        return ReadResult(file_data=FileData(content=base64.b64encode(data).decode(), encoding="base64"))

    async def write(self, path: str, content: str) -> WriteResult:
        try:
            await self.client.write_file(self.thread, path, content.encode())
        except _SHOWN as error:
            return WriteResult(error=_said(path, error))
        return WriteResult(path=path)

    async def edit(self, path: str, old: str, new: str, *, replace_all: bool) -> EditResult:
        """Replace by the tool `edit_file`, which replaces the first match where deepagents wants a single one."""
        if not old:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        try:
            data = await self.client.read_file(self.thread, path, limit_bytes=_EDITED_LIMIT_BYTES + 1)
        except _SHOWN as error:
            return EditResult(error=_said(path, error))
        if len(data) > _EDITED_LIMIT_BYTES:
            return EditResult(error=f"Error: File '{path}' has more than {_EDITED_LIMIT_BYTES} bytes: use execute")
        # read() shows "\n" where the file may have "\r\n".
        lines = [text.replace("\r\n", "\n") for text in (old, new)]
        styles = ([old, new], [text.replace("\n", "\r\n") for text in lines], lines)
        texts = next((one for one in styles if one[0].encode() in data), None)
        if texts is None:
            return EditResult(error=f"Error: String not found in file: '{old}'")
        if data.count(texts[0].encode()) > 1 and not replace_all:
            said = f"String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
            return EditResult(error=f"Error: {said}")
        asked = {"path": path, "old_text": texts[0], "new_text": texts[1], "replace_all": replace_all}
        result = await self.client.call_tool("edit_file", asked, thread=self.thread)
        if refused := refusal(result):
            return EditResult(error=f"Error: File '{path}': {refused}")
        replaced = _REPLACED.match(result.content)
        if result.is_error or replaced is None:
            return EditResult(error=f"Error: {_failed(path, result)}")
        return EditResult(path=path, occurrences=int(replaced[1]))

    async def delete(self, path: str) -> DeleteResult:
        try:
            await self.client.remove_file(self.thread, path, recursive=True)
        except _SHOWN as error:
            return DeleteResult(error=_said(path, error))
        return DeleteResult(path=path)

    async def grep(self, pattern: str, path: str, glob: str | None, max_count: int | None) -> GrepResult:
        """Search for a text by the tool `grep`, page by page; `.git` is left out, as deepagents does elsewhere."""
        try:
            is_included = compile_grep_include_glob(glob) if glob else None
        except InvalidGlobPatternError as error:
            return GrepResult(error=str(error))
        most = _MATCH_LIMIT if max_count is None else max_count
        asked: dict[str, Any] = {"path": path, "pattern": "|".join(map(re.escape, pattern.split("\n"))), "limit": 1000}
        if glob and _PLAIN_NAME.fullmatch(glob):
            asked["include"] = glob
        matches: list[GrepMatch] = []
        deadline_s = time.monotonic() + _SEARCH_S
        while asked:
            result = await self.client.call_tool("grep", asked, thread=self.thread)
            if refused := refusal(result):
                return GrepResult(error=f"Path '{path}': {refused}")
            if result.is_error:
                return GrepResult(error=_failed(path, result))
            for match in _matches(result.content):
                below = posixpath.relpath(match["path"], path)
                if ".git" not in below.split("/")[:-1] and (is_included is None or below == "." or is_included(below)):
                    matches.append(match)
            asked = _next_call(_NEXT_GREP, result)
            if len(matches) > most or "ran out of time" in result.note or time.monotonic() > deadline_s:
                return GrepResult(matches=matches[:most], truncated=True)
        return GrepResult(matches=matches)

    async def glob(self, pattern: str, path: str) -> GlobResult:
        """Find files by the pattern's meaning in deepagents, of all that the policy lets one list below `path`."""
        try:
            is_included = compile_grep_include_glob(pattern)
        except InvalidGlobPatternError as error:
            return GlobResult(error=str(error))
        matches: list[FileInfo] = []
        try:
            async with asyncio.timeout(_SEARCH_S):
                async for one in self.client.list_files(self.thread, path, pattern="**/*"):
                    if one.kind == "file" and is_included(one.name):
                        if len(matches) == _MATCH_LIMIT:
                            return GlobResult(matches=matches, truncated=True, truncation_reason="budget")
                        matches.append(_info(path, one))
        except TimeoutError:
            return GlobResult(matches=matches, truncated=True, truncation_reason="budget")
        except _SHOWN as error:
            return GlobResult(error=_said(path, error))
        return GlobResult(matches=matches)

    async def upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, await self._uploaded(path, data)) for path, data in files]

    async def _uploaded(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return INVALID_PATH
        try:
            await self.client.write_file(self.thread, path, data)
        except _SHOWN as error:
            return _code(error)
        return None

    async def download(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [await self._downloaded(path) for path in paths]

    async def _downloaded(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error=INVALID_PATH)
        try:
            return FileDownloadResponse(path, content=await self.client.read_file(self.thread, path))
        except _SHOWN as error:
            return FileDownloadResponse(path, error=_code(error))


class AirlockBackend(SandboxBackendProtocol):
    """The sandbox of a thread, by default of a new one. Usable from any thread and event loop; `close()` it."""

    def __init__(self, thread: str = "", *, address: str = "", api_key: str = "") -> None:
        key = api_key or os.environ.get("AIRLOCK_API_KEY", "")
        if not key:
            raise ValueError("api_key: pass one, or set AIRLOCK_API_KEY; `airlock key create` makes a key")
        self.thread = thread or f"deepagents/{uuid.uuid4().hex}"
        client = Client(address or os.environ.get("AIRLOCK_ADDRESS", "127.0.0.1:7443"), key)
        self._operations = _Operations(client, self.thread)
        self._loop = _LoopThread()

    @property
    def id(self) -> str:
        """The name of the thread."""
        return self.thread

    def close(self) -> None:
        """Close the connection. The sandbox stops after its idle timeout; the thread keeps its files."""
        self._loop.run(self._operations.client.aclose())
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return self._loop.run(self._operations.execute(command, timeout))

    @override
    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return await self._loop.arun(self._operations.execute(command, timeout))

    @override
    def ls(self, path: str) -> LsResult:
        return self._loop.run(self._operations.ls(path))

    @override
    async def als(self, path: str) -> LsResult:
        return await self._loop.arun(self._operations.ls(path))

    @override
    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._loop.run(self._operations.read(file_path, offset, limit))

    @override
    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self._loop.arun(self._operations.read(file_path, offset, limit))

    @override
    def write(self, file_path: str, content: str) -> WriteResult:
        return self._loop.run(self._operations.write(file_path, content))

    @override
    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await self._loop.arun(self._operations.write(file_path, content))

    @override
    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._loop.run(self._operations.edit(file_path, old_string, new_string, replace_all=replace_all))

    @override
    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return await self._loop.arun(self._operations.edit(file_path, old_string, new_string, replace_all=replace_all))

    @override
    def delete(self, file_path: str) -> DeleteResult:
        return self._loop.run(self._operations.delete(file_path))

    @override
    async def adelete(self, file_path: str) -> DeleteResult:
        return await self._loop.arun(self._operations.delete(file_path))

    @override
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._loop.run(self._operations.grep(pattern, path or _WORKSPACE, glob, max_count))

    @override
    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return await self._loop.arun(self._operations.grep(pattern, path or _WORKSPACE, glob, max_count))

    @override
    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._loop.run(self._operations.glob(pattern, path or _WORKSPACE))

    @override
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await self._loop.arun(self._operations.glob(pattern, path or _WORKSPACE))

    @override
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._loop.run(self._operations.upload(files))

    @override
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._loop.arun(self._operations.upload(files))

    @override
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._loop.run(self._operations.download(paths))

    @override
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._loop.arun(self._operations.download(paths))


def _info(directory: str, entry: FileEntry) -> FileInfo:
    return FileInfo(
        path=posixpath.join(directory, entry.name),
        is_dir=entry.kind == "directory",
        size=entry.size_bytes,
        modified_at=entry.modified_at.isoformat(),
    )


def _page(result: ToolResult, offset: int) -> ReadResult:
    """Return what the tool `read_file` showed, with its place in the file."""
    text = result.content.replace("\r\n", "\n")
    if not text:
        # deepagents has a sentence of its own for a file that has nothing; a page past the end is an error there.
        error = result.note.strip("[]") if offset else None
        return ReadResult(error=error, file_data=None if error else FileData(content="", encoding="utf-8"))
    end = offset + text.count("\n") + (not text.endswith("\n"))
    following = _next_call(_NEXT_READ, result)
    content = text.removesuffix("\n")
    if "byte_offset" in following:
        content += f"\n[line {end} is longer than 64 KiB and cut here]"
    return ReadResult(
        file_data=FileData(content=content, encoding="utf-8"),
        start_line=offset + 1,
        end_line=end,
        next_offset=end if following else None,
        total_lines=None if following else end,
    )


def _next_call(pattern: re.Pattern[str], result: ToolResult) -> dict[str, Any]:
    """Return the arguments of the next page, which the note of a page names; none after the last one."""
    found = pattern.search(result.note)
    return json.loads(found[1]) if found else {}


def _matches(content: str) -> list[GrepMatch]:
    found = [_MATCH.fullmatch(line) for line in content.splitlines()]
    return [GrepMatch(path=one[1], line=int(one[2]), text=one[3]) for one in found if one is not None]


def _code(error: errors.AirlockError) -> str:
    """Return deepagents' code for an error, or for a denial or an approval by a rule its sentence, which names it."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
    return str(error) if code is None or error.details.get("rule") else code


def _said(path: str, error: errors.AirlockError) -> str:
    if isinstance(error, errors.NotFound):
        return f"File '{path}' not found"
    return f"File '{path}': {error}"


def _failed(path: str, result: ToolResult) -> str:
    """Return why a tool failed on a path, in the words that deepagents has for a file that is not there."""
    if "no such file or directory" in result.content:
        return f"File '{path}' not found"
    return f"File '{path}': {result.content}"
