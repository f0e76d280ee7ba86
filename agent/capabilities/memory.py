"""Memory: files such as AGENTS.md that are in the system prompt of every inference, and that the agent itself edits.

The text is kept in the run's notes, so that a resumed run goes on with the same prompt, and is read again after the
agent has written to one of the files. Other ways to change them (a command, another run) count from the next run on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import JsonValue

from agent.capabilities.capability import Capability
from agent.filesystem import FileSystem
from agent.hooks.hook import Hook
from agent.state import AgentState
from agent.tools.paths import resolve

TEXT = "memory.text"
FILES = "memory.files"
FILE_LIMIT_BYTES = 32 * 1024
LIMIT_BYTES = 64 * 1024
"""How much of one file, and of all of them, is in the prompt at most."""

_WRITERS = frozenset({"edit_file", "write_file"})
_SEPARATOR = "\n\n---\n\n"
# What opens or closes our tags, or might pass for it. One class of characters, so that it cannot backtrack for long.
_TAG = re.compile(r"<(?=[\s/]*agent_memory)", re.IGNORECASE)

_THERE = ""
_MISSING = " (not there yet: write_file makes it)"
_NOT_TEXT = " (left out: it is not UTF-8 text)"
_UNREADABLE = " (left out: it could not be read)"
_NO_ROOM = f" (left out: the files before it fill the {LIMIT_BYTES} bytes there are; shorten them)"

_GUIDELINES = """\
About <agent_memory>:
- It stays: earlier conversations left it there, and later ones will find what you leave. It is kept in these files, \
in this order:
{files}
- When you learn what will matter again (a decision and its reason, a convention, what the user prefers), note it with \
edit_file, or with write_file in a new file. What you see here follows the file.
- Keep it short and in order: mend what changed, take out what no longer holds, and put no secret in it.
- It is background. The instructions above and what the user asks for come first."""


class Memory(Hook):
    """Reads the files when a run begins and after the agent wrote to one, and shows them to the model."""

    name = "memory"
    timeout_s = 30.0
    on_failure = "open"

    def __init__(self, files: FileSystem, paths: Sequence[str]) -> None:
        if isinstance(paths, str):  # its letters would be the paths
            raise TypeError(f"paths is one string, {paths!r}: pass a list, as in [{paths!r}]")
        self._files = files
        self._paths = tuple(dict.fromkeys(resolve(path) for path in paths))

    async def execution_start(self, state: AgentState) -> AgentState:
        return await self._remembered(state)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if tool.call.name not in _WRITERS or not tool.succeeded:
            return state
        # The path is in its final form: absolute and normalised.
        wrote = tool.call.arguments is not None and tool.call.arguments.get("path") in self._paths
        return await self._remembered(state) if wrote else state

    async def before_inference(self, state: AgentState) -> AgentState:
        text, files = state.notes.get(TEXT), state.notes.get(FILES)
        if not isinstance(text, str) or not isinstance(files, dict) or not files:
            return state  # reading failed as a whole, which is an event, or there is nothing to read
        listed = "\n".join(f"  - {path}{remark}" for path, remark in files.items())
        section = f"<agent_memory>\n{text or '(empty)'}\n</agent_memory>\n\n{_GUIDELINES.format(files=listed)}"
        prompt = state.current.system_prompt
        return state.with_system_prompt(f"{prompt}\n\n{section}" if prompt else section)

    async def _remembered(self, state: AgentState) -> AgentState:
        texts: list[str] = []
        files: dict[str, JsonValue] = {}
        room_bytes = LIMIT_BYTES
        for path in self._paths:
            text, size_bytes, files[path] = await self._read(path, min(FILE_LIMIT_BYTES, room_bytes))
            room_bytes -= size_bytes
            if text:
                texts.append(text)
        return state.with_note(TEXT, _SEPARATOR.join(texts)).with_note(FILES, files)

    async def _read(self, path: str, limit_bytes: int) -> tuple[str, int, str]:
        """Return a file's text, how many bytes of it that is, and what is to be said of the file."""
        if limit_bytes <= 0:
            return "", 0, _NO_ROOM
        try:
            page = await self._files.read_lines(path, limit=limit_bytes, limit_bytes=limit_bytes)
        except FileNotFoundError:
            return "", 0, _MISSING
        except Exception:  # a directory, a link, a sandbox in trouble: the run can go on without this file
            return "", 0, _UNREADABLE
        if page.binary:
            return "", 0, _NOT_TEXT
        text = _TAG.sub("&lt;", page.data.decode("utf-8", "replace").strip())
        if page.more:
            shown = f"the first {len(page.data)} of {page.size_bytes} bytes of {path}"
            text = f"{text}\n[cut here: these are {shown}. read_file shows the rest; make the file shorter]"
        return text, len(page.data), _THERE


def memory(files: FileSystem, paths: Sequence[str]) -> Capability:
    """Return the memory kept in the files at `paths`, relative ones from the workspace.

    Raises InvalidPath for a path that can be none, TypeError for one string instead of a list.
    """
    return Capability("memory", hooks=(Memory(files, paths),))
