"""The operations of the deepagents backend, each as tool calls and file calls on a thread.

What the model can act on (no such file, a denial, a call that waits for an approval) is a result that says so. The loss
of the gateway or the sandbox is an exception.
"""

import asyncio
import base64
import posixpath
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

from airlock import Client, FileEntry, ToolResult, errors
from gateway.integrations.adapter import (
    NOT_RUN,
    exit_code_of,
    next_call,
    refusal,
    rest_of_output,
    whole_output,
)

_EDITED_LIMIT_BYTES = 32 * 1024 * 1024
_MATCH_LIMIT = 10_000
_SEARCH_S = 25.0
"""Shorter than the time after which deepagents gives a search up and shows nothing of it."""
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
_MATCH = re.compile(r"(.*?):(\d+):(.*)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[\w*.-]+")  # means the same to deepagents and to the tool `grep`
_REPLACED = re.compile(r"replaced (\d+) ")


@dataclass(frozen=True)
class Operations:
    """The operations on a thread."""

    client: Client
    thread: str

    async def execute(self, command: str, timeout_s: int | None) -> ExecuteResponse:
        """Run a command; `timeout_s` None or 0: as long as the tool `execute` takes without one."""
        asked = {"command": command, **({"timeout_s": timeout_s} if timeout_s else {})}
        result = await self.client.call_tool("execute", asked, thread=self.thread)
        if refused := refusal(result):
            return ExecuteResponse(refused, NOT_RUN)
        whole = await whole_output(self.client, result)
        notes = [result.note if result.exit_code is None else "", rest_of_output(result) if whole is None else ""]
        output = "\n".join([result.content if whole is None else whole, *filter(None, notes)])
        return ExecuteResponse(output, exit_code_of(result), truncated=whole is None)

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
            asked = next_call(result)
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
    following = next_call(result)
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
