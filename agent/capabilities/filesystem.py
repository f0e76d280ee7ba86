"""The six file tools over a FileSystem: ls, read_file, write_file, edit_file, glob and grep.

Paths become absolute before policy judges them (agent.tools.paths). Long results come in pages and are never evicted: a
page's note contains the exact next call. Long results of other tools are evicted to files here (agent.tools.eviction).
"""

import codecs
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, PlainValidator, WithJsonSchema, model_validator

from agent.filesystem import EntriesPage, FileSystem
from agent.hooks.hook import Hook, tool_name
from agent.messages import ToolResult
from agent.state import AgentState
from agent.tools.eviction import Eviction, EvictionHook
from agent.tools.paths import WORKSPACE, resolve
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

PAGE_BYTES = 65_536
"""The most that a page contains."""

_TRACKED_PREFIX = "files."

_LS = "List a directory as a JSON array of {name, type, size}."
_READ = (
    "Read a text file from line `offset` on, without line numbers. If there is more, a note names the call that reads "
    "on. In a large file, find the place with grep first."
)
_WRITE = "Write a whole file: replaces its content, or makes it and its parent directories. edit_file changes a part."
_EDIT = (
    "Replace old_text in a file by new_text: the first match, or every one with replace_all. The file must contain "
    "old_text exactly; to mean one place of several, include the line before it."
)
_GLOB = "Find paths by pattern, one absolute path a line."
_GREP = "Search text files, or one file, by regular expression; lines are path:line:text."


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - pydantic turns only a ValueError into its own error
    return resolve(value)


# A plain validator, because pydantic's str refuses surrogates: names that are not UTF-8 contain them.
FilePath = Annotated[str, PlainValidator(_path), WithJsonSchema({"type": "string"})]


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains an unpaired surrogate: write the complete character") from None
    return text


_Text = Annotated[str, AfterValidator(_utf8)]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - as above
    return value


# The bounds come first: pydantic omits those after a validator from the JSON Schema.
_Count = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_no_bool)]
_PageSize = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_no_bool)]


class _Directory(ToolArguments):
    path: FilePath = Field(WORKSPACE, description="absolute, or relative to /workspace")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, arguments: Any) -> Any:
        # Explicit, so that policy judges the directory even if the model gives none.
        return {"path": WORKSPACE, **arguments} if isinstance(arguments, dict) else arguments


class _Ls(_Directory):
    offset: _Count = Field(0, description="entries to skip")
    limit: _PageSize = Field(1000, description="entries to return at most")


class _ReadFile(ToolArguments):
    path: FilePath = Field(description="absolute, or relative to /workspace")
    offset: _Count = Field(0, description="lines to skip")
    limit: _PageSize = Field(2000, description="lines to return at most; a page holds 64 KiB at most")
    byte_offset: _Count | None = Field(None, description="read on from this byte instead, for very long lines")


class _WriteFile(ToolArguments):
    path: FilePath = Field(description="absolute, or relative to /workspace")
    content: _Text = Field(description="the whole new content")


class _EditFile(ToolArguments):
    path: FilePath = Field(description="absolute, or relative to /workspace")
    old_text: _Text = Field(min_length=1, description="exact text to replace, spaces and line ends included")
    new_text: _Text = Field(description="text to put there")
    replace_all: bool = Field(False, description="replace every match, not only the first")


class _Glob(_Directory):
    pattern: str = Field(min_length=1, description="relative to path; ** crosses directories, as in **/*.py")
    offset: _Count = Field(0, description="matches to skip")
    limit: _PageSize = Field(1000, description="matches to return at most")


class _Grep(_Directory):
    path: FilePath = Field(WORKSPACE, description="a directory or a file; absolute, or relative to /workspace")
    pattern: str = Field(min_length=1, description="Python regular expression, matched line by line")
    include: str = Field("", description="only files whose name matches this glob, as in *.py")
    offset: _Count = Field(0, description="matches to skip")
    limit: _PageSize = Field(200, description="matches to return at most")


@dataclass(frozen=True)
class _FileTools:
    files: FileSystem

    async def ls(self, asked: _Ls, _context: ToolContext) -> ToolResult:
        page = await self.files.ls(asked.path, offset=asked.offset, limit=asked.limit)
        rows = [_json_text({"name": one.name, "type": one.type, "size": one.size_bytes}) for one in page.entries]
        kept = _fitting(rows)
        content = b"[" + b",\n ".join(kept) + b"]"
        if not kept and asked.offset:
            return ToolResult(content, note=_past_end(asked.offset, page.total))
        return ToolResult(content, note=_entries_note("ls", {"path": asked.path}, asked, len(kept), page))

    async def read_file(self, asked: _ReadFile, _context: ToolContext) -> ToolResult:
        if asked.byte_offset is not None:
            return await self._read_bytes(asked.path, asked.byte_offset)
        page = await self.files.read_lines(asked.path, offset=asked.offset, limit=asked.limit, limit_bytes=PAGE_BYTES)
        if page.binary:
            return _binary(asked.path, page.size_bytes)
        first, last = asked.offset + 1, asked.offset + page.lines
        note = ""
        if page.lines == 0 and asked.offset > 0:
            note = f"[line {first} is past the end of {asked.path}]"
        elif page.size_bytes == 0:
            note = f"[{asked.path} is empty]"
        elif page.cut or page.more:
            rest = {"byte_offset": page.next_byte} if page.cut else {"offset": last, "limit": asked.limit}
            cut = ", the last one cut" if page.cut else ""
            next_call = _shown_call("read_file", path=asked.path, **rest)
            note = f"[lines {first}-{last}{cut}; {page.size_bytes} bytes in all. Next: {next_call}]"
        return ToolResult(page.data, note=note)

    async def _read_bytes(self, path: str, offset: int) -> ToolResult:
        size_bytes = (await self.files.stat(path)).size_bytes
        data = b"".join([piece async for piece in self.files.read(path, offset=offset, length=PAGE_BYTES)])
        if not data:
            return ToolResult(b"", note=f"[byte {offset} is past the end of {path}, which has {size_bytes} bytes]")
        try:
            # The end of the page may cut a character, which then belongs to the next one.
            text, used_bytes = codecs.utf_8_decode(data, "strict", offset + len(data) >= size_bytes)
        except UnicodeDecodeError:
            text, used_bytes = "\0", 0
        if "\0" in text:
            return _binary(path, size_bytes, offset)
        end = offset + used_bytes
        next_call = _shown_call("read_file", path=path, byte_offset=end)
        note = f"[bytes {offset}-{end} of {size_bytes}. Next: {next_call}]" if end < size_bytes else ""
        return ToolResult(data[:used_bytes], note=note)

    async def write_file(self, asked: _WriteFile, _context: ToolContext) -> ToolResult:
        data = asked.content.encode()
        await self.files.write(asked.path, data)
        return ToolResult(_encoded(f"wrote {len(data)} bytes to {asked.path}"))

    async def edit_file(self, asked: _EditFile, _context: ToolContext) -> ToolResult:
        old_text, new_text = asked.old_text.encode(), asked.new_text.encode()
        done = await self.files.edit(asked.path, old_text, new_text, replace_all=asked.replace_all)
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

    async def glob(self, asked: _Glob, _context: ToolContext) -> ToolResult:
        page = await self.files.glob(asked.path, asked.pattern, offset=asked.offset, limit=asked.limit)
        kept = _fitting([_encoded(entry.name) for entry in page.entries])
        again = {"pattern": asked.pattern, "path": asked.path}
        if kept:
            note = _entries_note("glob", again, asked, len(kept), page)
        elif asked.offset and page.total:
            note = _past_end(asked.offset, page.total)
        else:
            note = f"[nothing matches {asked.pattern} in {asked.path}]"
        notes = [note, _unsearched(page.unsearched)]
        return ToolResult(b"\n".join(kept), note="\n".join(filter(None, notes)))

    async def grep(self, asked: _Grep, _context: ToolContext) -> ToolResult:
        page = await self.files.grep(
            asked.path, asked.pattern, include=asked.include, offset=asked.offset, limit=asked.limit
        )
        kept = _fitting([_encoded(f"{match.path}:{match.line}:{match.text}") for match in page.matches])
        notes = []
        # With nothing kept the next call would be this one again, without end.
        if kept and (page.more or len(kept) < len(page.matches)):
            again = {"pattern": asked.pattern, "path": asked.path}
            if asked.include:
                again["include"] = asked.include
            next_call = _shown_call("grep", **again, offset=asked.offset + len(kept), limit=asked.limit)
            notes.append(f"[matches {asked.offset + 1}-{asked.offset + len(kept)}. Next: {next_call}]")
        elif not kept and not page.timed_out:
            notes.append(f"[no {'more ' if asked.offset else ''}line matches {asked.pattern} in {asked.path}]")
        if page.timed_out:
            notes.append("[the search ran out of time, there may be more: search a smaller path or use include]")
        if page.binary_files:
            notes.append(f"[binary files skipped: {page.binary_files}]")
        if page.hard_linked_files:
            notes.append(f"[files with several names (hard links) skipped: {page.hard_linked_files}]")
        notes.append(_unsearched(page.unsearched))
        return ToolResult(b"\n".join(kept), note="\n".join(filter(None, notes)))


def _past_end(offset: int, total: int) -> str:
    return f"[offset {offset} is past the end: there are {total}]"


def _unsearched(count: int) -> str:
    return f"[directories or files that could not be read or lie too deep: {count}]" if count else ""


def _encoded(text: str) -> bytes:
    # Names that are not UTF-8 keep their bytes.
    return text.encode("utf-8", "surrogateescape")


def _json_text(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # escapes represent a name that is not UTF-8
        return json.dumps(value).encode()


def _fitting(rows: Iterable[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    size_bytes = 0
    for row in rows:
        size_bytes += len(row) + 3
        if kept and size_bytes > PAGE_BYTES:
            break
        kept.append(row)
    return kept


def _entries_note(tool: str, again: dict[str, Any], asked: _Ls | _Glob, kept: int, page: EntriesPage) -> str:
    if not page.more and kept == len(page.entries):
        return ""
    next_call = _shown_call(tool, **again, offset=asked.offset + kept, limit=asked.limit)
    known = f"of {'at least ' if tool == 'glob' else ''}{page.total}"
    return f"[{asked.offset + 1}-{asked.offset + kept} {known}. Next: {next_call}]"


def _shown_call(tool: str, **arguments: object) -> str:
    return f"{tool} {json.dumps(arguments)}"


def _binary(path: str, size_bytes: int, offset: int = 0) -> ToolResult:
    return ToolResult.error(
        f"{path} is binary: it has NUL bytes or is not UTF-8 here ({size_bytes} bytes in all). Look at its bytes with "
        f"execute: od -A d -t x1z -j {offset} -N 256 {shlex.quote(path)}"
    )


class FileTracking(Hook):
    """Records in the thread's metadata which files were written or edited, under "files.<path>".

    An entry is the last change: {"action": "written" | "edited", "step": of its run, "change": its number in the
    thread, from 1, "size_bytes": if known}. Past 256 files the one with the oldest change is removed.
    """

    name = "files"
    on_failure = "open"
    when = tool_name("write_file") | tool_name("edit_file")

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        arguments = tool.call.arguments or {}
        path, content = arguments.get("path"), arguments.get("content")
        if not tool.succeeded or not isinstance(path, str):
            return state
        # A state with half a surrogate pair cannot be stored.
        key = _TRACKED_PREFIX + path.encode("utf-8", "backslashreplace").decode()
        tracked = {name: _change(kept) for name, kept in state.metadata.items() if name.startswith(_TRACKED_PREFIX)}
        entry: dict[str, JsonValue] = {
            "action": "written" if tool.call.name == "write_file" else "edited",
            "step": state.steps,
            "change": max(tracked.values(), default=0) + 1,
        }
        if tool.call.name == "write_file" and isinstance(content, str):
            entry["size_bytes"] = len(content.encode("utf-8", "replace"))
        if key not in tracked and len(tracked) >= 256:
            state = state.without_metadata(min(tracked, key=tracked.__getitem__))
        return state.with_metadata(key, entry)


def _change(kept: JsonValue) -> int:
    """Return the number of a file's last change; an invalid entry counts as the oldest."""
    change = kept.get("change") if isinstance(kept, dict) else None
    return change if isinstance(change, int) else 0


def filesystem(
    files: FileSystem,
    *,
    eviction: Eviction | None = None,
    eviction_per_tool: Mapping[str, Eviction] = MappingProxyType({}),
) -> Capability:
    """Return the six file tools over `files`, and the eviction of other tools' large results to files there.

    `eviction_per_tool` overrides the sizes for single tools: execute needs them if bash() has larger ones.
    """
    tools = _FileTools(files)
    return Capability(
        "filesystem",
        hooks=(EvictionHook(files, eviction or Eviction(), eviction_per_tool), FileTracking()),
        tools=(
            Tool("ls", _LS, _Ls, tools.ls, read_only=True),
            Tool("read_file", _READ, _ReadFile, tools.read_file, read_only=True),
            Tool("write_file", _WRITE, _WriteFile, tools.write_file, writes=True),
            Tool("edit_file", _EDIT, _EditFile, tools.edit_file, writes=True),
            Tool("glob", _GLOB, _Glob, tools.glob, read_only=True),
            Tool("grep", _GREP, _Grep, tools.grep, read_only=True),
        ),
    )
