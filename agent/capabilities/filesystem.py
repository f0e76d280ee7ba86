"""The six file tools over a FileSystem: ls, read_file, write_file, edit_file, glob and grep.

Paths are absolute, or relative to /workspace; they become absolute before policy judges them (agent.tools.paths). Long
results come in pages and are never evicted: a page's note contains the exact next call. Long results of other tools are
evicted to files here (agent.tools.eviction). The thread's metadata records which files were written or edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import JsonValue

from agent.capabilities.capability import Capability
from agent.filesystem import FileSystem
from agent.hooks.hook import Hook
from agent.hooks.matchers import tool_name
from agent.messages import ToolResult
from agent.state import AgentState
from agent.tools.eviction import Eviction, EvictionHook
from agent.tools.file_arguments import (
    EditFileArguments,
    GlobArguments,
    GrepArguments,
    LsArguments,
    ReadFileArguments,
    WriteFileArguments,
)
from agent.tools.file_pages import (
    PAGE_BYTES,
    binary,
    encoded,
    entries_note,
    fitting,
    json_text,
    shown_call,
    whole_characters,
)
from agent.tools.tool import Tool, ToolContext

__all__ = ["PAGE_BYTES", "FileTracking", "filesystem"]

_TRACKED_PREFIX = "files."
_TRACKED_LIMIT = 256
_ACTIONS = {"write_file": "written", "edit_file": "edited"}

_LS = "List a directory as a JSON array of {name, type, size}."
_READ = "Read a text file, 2000 lines at a time."
_WRITE = "Replace a file's content, or make the file and its parent directories."
_EDIT = "Replace the first exact match of old_text in a file by new_text."
_GLOB = "Find paths by pattern, one absolute path a line."
_GREP = "Search text files by regular expression; lines are path:line:text."


class _FileTools:
    def __init__(self, files: FileSystem) -> None:
        self._files = files

    async def ls(self, asked: LsArguments, _context: ToolContext) -> ToolResult:
        page = await self._files.ls(asked.path, offset=asked.offset, limit=asked.limit)
        rows = [json_text({"name": entry.name, "type": entry.type, "size": entry.size_bytes}) for entry in page.entries]
        kept = fitting(rows)
        content = b"[" + b",\n ".join(kept) + b"]"
        if not kept and asked.offset:
            return ToolResult(content, note=_past_end(asked.offset, page.total))
        return ToolResult(content, note=entries_note("ls", {"path": asked.path}, asked, len(kept), page))

    async def read_file(self, asked: ReadFileArguments, _context: ToolContext) -> ToolResult:
        if asked.byte_offset is not None:
            return await self._read_bytes(asked.path, asked.byte_offset)
        page = await self._files.read_lines(asked.path, offset=asked.offset, limit=asked.limit, limit_bytes=PAGE_BYTES)
        if page.binary:
            return binary(asked.path, page.size_bytes)
        first, last = asked.offset + 1, asked.offset + page.lines
        if page.lines == 0 and asked.offset > 0:
            return ToolResult(b"", note=f"[line {first} is past the end of {asked.path}]")
        if page.size_bytes == 0:
            return ToolResult(b"", note=f"[{asked.path} is empty]")
        if page.cut:
            next_call = shown_call("read_file", path=asked.path, byte_offset=page.next_byte)
            note = f"[lines {first}-{last}, the last one cut; {page.size_bytes} bytes in all. Next: {next_call}]"
            return ToolResult(page.data, note=note)
        if page.more:
            next_call = shown_call("read_file", path=asked.path, offset=last, limit=asked.limit)
            note = f"[lines {first}-{last}; {page.size_bytes} bytes in all. Next: {next_call}]"
            return ToolResult(page.data, note=note)
        return ToolResult(page.data)

    async def _read_bytes(self, path: str, offset: int) -> ToolResult:
        size_bytes = (await self._files.stat(path)).size_bytes
        data = b"".join([piece async for piece in self._files.read(path, offset=offset, length=PAGE_BYTES)])
        if not data:
            return ToolResult(b"", note=f"[byte {offset} is past the end of {path}, which has {size_bytes} bytes]")
        end = offset + len(data)
        if end < size_bytes:  # the end of the page may cut a character
            data = data[: whole_characters(data)]
            end = offset + len(data)
        try:
            is_text = "\0" not in data.decode()
        except UnicodeDecodeError:
            is_text = False
        if not is_text:
            return binary(path, size_bytes, offset)
        if end < size_bytes:
            next_call = shown_call("read_file", path=path, byte_offset=end)
            return ToolResult(data, note=f"[bytes {offset}-{end} of {size_bytes}. Next: {next_call}]")
        return ToolResult(data)

    async def write_file(self, asked: WriteFileArguments, _context: ToolContext) -> ToolResult:
        data = asked.content.encode()
        await self._files.write(asked.path, data)
        return ToolResult(encoded(f"wrote {len(data)} bytes to {asked.path}"))

    async def edit_file(self, asked: EditFileArguments, _context: ToolContext) -> ToolResult:
        done = await self._files.edit(
            asked.path, asked.old_text.encode(), asked.new_text.encode(), replace_all=asked.replace_all
        )
        if done.replaced == 0:
            return ToolResult.error(
                f"old_text is not in {asked.path}; nothing was changed. It must match exactly, spaces and line ends "
                "included: look with read_file and copy the text from there."
            )
        content = encoded(f"replaced {done.replaced} {'match' if done.replaced == 1 else 'matches'} in {asked.path}")
        if not done.left:
            return ToolResult(content)
        more = f"[{done.left} more {'match is' if done.left == 1 else 'matches are'} left"
        return ToolResult(content, note=f"{more}; call again with replace_all: true to replace every match]")

    async def glob(self, asked: GlobArguments, _context: ToolContext) -> ToolResult:
        page = await self._files.glob(asked.path, asked.pattern, offset=asked.offset, limit=asked.limit)
        kept = fitting([encoded(entry.name) for entry in page.entries])
        again = {"pattern": asked.pattern, "path": asked.path}
        if kept:
            note = entries_note("glob", again, asked, len(kept), page)
        elif asked.offset and page.total:
            note = _past_end(asked.offset, page.total)
        else:
            note = f"[nothing matches {asked.pattern} in {asked.path}]"
        notes = [note, _unsearched(page.unsearched)]
        return ToolResult(b"\n".join(kept), note="\n".join(filter(None, notes)))

    async def grep(self, asked: GrepArguments, _context: ToolContext) -> ToolResult:
        page = await self._files.grep(
            asked.path, asked.pattern, include=asked.include, offset=asked.offset, limit=asked.limit
        )
        kept = fitting([encoded(f"{match.path}:{match.line}:{match.text}") for match in page.matches])
        notes = []
        # With nothing kept the next call would be this one again, without end.
        if kept and (page.more or len(kept) < len(page.matches)):
            again = {"pattern": asked.pattern, "path": asked.path, "include": asked.include}
            again = {name: value for name, value in again.items() if name != "include" or value}
            next_call = shown_call("grep", **again, offset=asked.offset + len(kept), limit=asked.limit)
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
            "action": _ACTIONS[tool.call.name],
            "step": state.steps,
            "change": max(tracked.values(), default=0) + 1,
        }
        if tool.call.name == "write_file" and isinstance(content, str):
            entry["size_bytes"] = len(content.encode("utf-8", "replace"))
        if key not in tracked and len(tracked) >= _TRACKED_LIMIT:
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
            Tool("ls", _LS, LsArguments, tools.ls, read_only=True),
            Tool("read_file", _READ, ReadFileArguments, tools.read_file, read_only=True),
            Tool("write_file", _WRITE, WriteFileArguments, tools.write_file, writes=True),
            Tool("edit_file", _EDIT, EditFileArguments, tools.edit_file, writes=True),
            Tool("glob", _GLOB, GlobArguments, tools.glob, read_only=True),
            Tool("grep", _GREP, GrepArguments, tools.grep, read_only=True),
        ),
    )
