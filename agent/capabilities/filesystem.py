"""The six file tools over a FileSystem: ls, read_file, write_file, edit_file, glob and grep.

Paths are absolute, or relative to /workspace; they are made absolute before policy judges them (agent.paths). Long
results come in pages, never evicted: the note of a page holds the exact next call.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from agent.capability import Capability
from agent.filesystem import EntriesPage, FileSystem
from agent.paths import WORKSPACE, resolve
from agent.tool import Tool, ToolContext, ToolResult

PAGE_BYTES = 65_536
"""What a page of any of these tools holds at most."""


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - pydantic turns only a ValueError into its own error
    return resolve(value)


# A plain validator: names that are not UTF-8 come as surrogates, which pydantic's own str refuses.
Path = Annotated[str, PlainValidator(_path), WithJsonSchema({"type": "string"})]
"""A path argument: absolute and normalised once validated."""


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which no file can; write the character whole") from None
    return text


Text = Annotated[str, AfterValidator(_utf8)]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - as above
    return value


# The bounds first: after a validator pydantic would leave them out of the JSON Schema.
Count = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_no_bool)]
PageSize = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_no_bool)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Directory(_Arguments):
    path: Path = Field(WORKSPACE, description="absolute, or relative to /workspace")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, arguments: Any) -> Any:
        # Written out, so that policy judges the directory that is opened even when the model named none.
        return {"path": WORKSPACE, **arguments} if isinstance(arguments, dict) else arguments


class LsArguments(_Directory):
    """Arguments of ls."""

    offset: Count = Field(0, description="entries to skip")
    limit: PageSize = Field(1000, description="entries to return at most")


class ReadFileArguments(_Arguments):
    """Arguments of read_file."""

    path: Path = Field(description="absolute, or relative to /workspace")
    offset: Count = Field(0, description="lines to skip")
    limit: PageSize = Field(2000, description="lines to return at most; a page holds 64 KiB at most")
    byte_offset: Count | None = Field(None, description="read on from this byte instead, for very long lines")


class WriteFileArguments(_Arguments):
    """Arguments of write_file."""

    path: Path = Field(description="absolute, or relative to /workspace")
    content: Text = Field(description="the whole new content")


class EditFileArguments(_Arguments):
    """Arguments of edit_file."""

    path: Path = Field(description="absolute, or relative to /workspace")
    old_text: Text = Field(min_length=1, description="exact text to replace, spaces and line ends included")
    new_text: Text = Field(description="text to put there")
    replace_all: bool = Field(False, description="replace every match, not only the first")


class GlobArguments(_Directory):
    """Arguments of glob."""

    pattern: str = Field(min_length=1, description="relative to path; ** crosses directories, as in **/*.py")
    offset: Count = Field(0, description="matches to skip")
    limit: PageSize = Field(1000, description="matches to return at most")


class GrepArguments(_Directory):
    """Arguments of grep."""

    pattern: str = Field(min_length=1, description="Python regular expression, matched line by line")
    include: str = Field("", description="only files whose name matches this glob, as in *.py")
    offset: Count = Field(0, description="matches to skip")
    limit: PageSize = Field(200, description="matches to return at most")


class _FileTools:
    def __init__(self, files: FileSystem) -> None:
        self._files = files

    async def ls(self, asked: LsArguments, _context: ToolContext) -> ToolResult:
        page = await self._files.ls(asked.path, offset=asked.offset, limit=asked.limit)
        rows = [
            _json_text({"name": entry.name, "type": entry.type, "size": entry.size_bytes}) for entry in page.entries
        ]
        kept = _fitting(rows)
        content = b"[" + b",\n ".join(kept) + b"]"
        return ToolResult(content, note=_entries_note("ls", {"path": asked.path}, asked, len(kept), page))

    async def read_file(self, asked: ReadFileArguments, _context: ToolContext) -> ToolResult:
        if asked.byte_offset is not None:
            return await self._read_bytes(asked.path, asked.byte_offset)
        page = await self._files.read_lines(asked.path, offset=asked.offset, limit=asked.limit, limit_bytes=PAGE_BYTES)
        if page.binary:
            return _binary(asked.path, page.size_bytes)
        first, last = asked.offset + 1, asked.offset + page.lines
        if page.lines == 0 and asked.offset > 0:
            return ToolResult(b"", note=f"[line {first} is past the end of {asked.path}]")
        if page.size_bytes == 0:
            return ToolResult(b"", note=f"[{asked.path} is empty]")
        if page.cut:
            next_call = _call("read_file", path=asked.path, byte_offset=page.next_byte)
            note = f"[lines {first}-{last}, the last one cut; {page.size_bytes} bytes in all. Next: {next_call}]"
            return ToolResult(page.data, note=note)
        if page.more:
            next_call = _call("read_file", path=asked.path, offset=last, limit=asked.limit)
            note = f"[lines {first}-{last}; {page.size_bytes} bytes in all. Next: {next_call}]"
            return ToolResult(page.data, note=note)
        return ToolResult(page.data)

    async def _read_bytes(self, path: str, offset: int) -> ToolResult:
        size_bytes = (await self._files.stat(path)).size_bytes
        data = b"".join([piece async for piece in self._files.read(path, offset=offset, length=PAGE_BYTES)])
        if not data:
            return ToolResult(b"", note=f"[byte {offset} is past the end of {path}, which has {size_bytes} bytes]")
        end = offset + len(data)
        if end < size_bytes:  # a character may be cut at the end of the page, not inside it
            data = data[: _whole_characters(data)]
            end = offset + len(data)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return _binary(path, size_bytes, offset)
        if "\0" in text:
            return _binary(path, size_bytes, offset)
        if end < size_bytes:
            next_call = _call("read_file", path=path, byte_offset=end)
            return ToolResult(data, note=f"[bytes {offset}-{end} of {size_bytes}. Next: {next_call}]")
        return ToolResult(data)

    async def write_file(self, asked: WriteFileArguments, _context: ToolContext) -> ToolResult:
        data = asked.content.encode()
        await self._files.write(asked.path, data)
        return ToolResult(_encoded(f"wrote {len(data)} bytes to {asked.path}"))

    async def edit_file(self, asked: EditFileArguments, _context: ToolContext) -> ToolResult:
        done = await self._files.edit(
            asked.path, asked.old_text.encode(), asked.new_text.encode(), replace_all=asked.replace_all
        )
        if done.replaced == 0:
            return ToolResult.error(
                f"old_text is not in {asked.path}; nothing was changed. It must match exactly, spaces and line ends "
                "included: look with read_file and copy the text from there."
            )
        content = _encoded(f"replaced {done.replaced} {'match' if done.replaced == 1 else 'matches'} in {asked.path}")
        if not done.left:
            return ToolResult(content)
        more = f"[{done.left} more {'match is' if done.left == 1 else 'matches are'} left"
        return ToolResult(content, note=f"{more}; call again with replace_all: true to replace every match]")

    async def glob(self, asked: GlobArguments, _context: ToolContext) -> ToolResult:
        page = await self._files.glob(asked.path, asked.pattern, offset=asked.offset, limit=asked.limit)
        kept = _fitting([_encoded(entry.name) for entry in page.entries])
        if not kept:
            return ToolResult(b"", note=f"[nothing matches {asked.pattern} in {asked.path}]")
        again = {"pattern": asked.pattern, "path": asked.path}
        return ToolResult(b"\n".join(kept), note=_entries_note("glob", again, asked, len(kept), page))

    async def grep(self, asked: GrepArguments, _context: ToolContext) -> ToolResult:
        page = await self._files.grep(
            asked.path, asked.pattern, include=asked.include, offset=asked.offset, limit=asked.limit
        )
        kept = _fitting([_encoded(f"{match.path}:{match.line}:{match.text}") for match in page.matches])
        notes = []
        if page.more or len(kept) < len(page.matches):
            again = {"pattern": asked.pattern, "path": asked.path} | (
                {"include": asked.include} if asked.include else {}
            )
            next_call = _call("grep", **again, offset=asked.offset + len(kept), limit=asked.limit)
            notes.append(f"[matches {asked.offset + 1}-{asked.offset + len(kept)}. Next: {next_call}]")
        elif not kept:
            notes.append(f"[no {'more ' if asked.offset else ''}line matches {asked.pattern} in {asked.path}]")
        if page.timed_out:
            notes.append("[the search ran out of time, there may be more: search a smaller path or use include]")
        if page.binary_files:
            notes.append(f"[binary files skipped: {page.binary_files}]")
        return ToolResult(b"\n".join(kept), note="\n".join(notes))


def filesystem(files: FileSystem) -> Capability:
    """Return the six file tools over `files`."""
    tools = _FileTools(files)
    return Capability(
        "filesystem",
        tools=(
            Tool("ls", "List a directory as a JSON array of {name, type, size}.", LsArguments, tools.ls),
            Tool("read_file", "Read a text file, 2000 lines at a time.", ReadFileArguments, tools.read_file),
            Tool(
                "write_file",
                "Replace a file's content, or make the file and its parent directories.",
                WriteFileArguments,
                tools.write_file,
                writes=True,
            ),
            Tool(
                "edit_file",
                "Replace the first exact match of old_text in a file by new_text.",
                EditFileArguments,
                tools.edit_file,
                writes=True,
            ),
            Tool("glob", "Find paths by pattern, one absolute path a line.", GlobArguments, tools.glob),
            Tool(
                "grep", "Search text files by regular expression; lines are path:line:text.", GrepArguments, tools.grep
            ),
        ),
    )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _json_text(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a name that is not UTF-8: escapes keep the JSON valid and the name exact
        return json.dumps(value).encode()


def _fitting(rows: Iterable[bytes]) -> list[bytes]:
    """Return the rows that fit a page, always the first."""
    kept: list[bytes] = []
    size_bytes = 0
    for row in rows:
        size_bytes += len(row) + 3
        if kept and size_bytes > PAGE_BYTES:
            break
        kept.append(row)
    return kept


def _entries_note(
    tool: str, again: dict[str, Any], asked: LsArguments | GlobArguments, kept: int, page: EntriesPage
) -> str:
    if not page.more and kept == len(page.entries):
        return ""
    next_call = _call(tool, **again, offset=asked.offset + kept, limit=asked.limit)
    known = f"of {'at least ' if tool == 'glob' else ''}{page.total}"
    return f"[{asked.offset + 1}-{asked.offset + kept} {known}. Next: {next_call}]"


def _call(tool: str, **arguments: object) -> str:
    return f"{tool} {json.dumps(arguments)}"


def _binary(path: str, size_bytes: int, offset: int = 0) -> ToolResult:
    return ToolResult.error(
        f"{path} is binary: it has NUL bytes or is not UTF-8 here ({size_bytes} bytes in all). Look at its bytes with "
        f"execute: od -A d -t x1z -j {offset} -N 256 {shlex.quote(path)}"
    )


def _whole_characters(data: bytes) -> int:
    """Return the length of `data` without a UTF-8 character that its end cuts."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) if back >= needed else len(data) - back
    return len(data)
