"""Memory: files such as AGENTS.md that every system prompt contains and that the agent itself edits.

The run's notes keep the text. It is read again after the agent writes to one of the files; other changes (by a command,
by another run) take effect in the next run.
"""

import re
from collections.abc import Sequence

from pydantic import JsonValue

from agent.filesystem import FileSystem
from agent.hooks.hook import Hook
from agent.state import AgentState
from agent.tools.paths import resolved
from agent.tools.tool import Capability

TEXT = "memory.text"
FILES = "memory.files"
FILE_LIMIT_BYTES = 32 * 1024
LIMIT_BYTES = 64 * 1024
"""The most that the prompt contains of one file, and of all together."""

# Anything that opens or closes our tag, or looks like it. One character class, so that it cannot backtrack for long.
_TAG = re.compile(r"<(?=[\s/]*agent_memory)", re.IGNORECASE)

_GUIDELINES = """\
About <agent_memory>:
- It stays: earlier conversations left it there, and later ones will find what you leave. It is kept in these files, \
in this order:
{files}
- When you learn what will matter again (a decision and its reason, a convention, what the user prefers), note it with \
edit_file, or with write_file in a new file. What you see here follows the file.
- Keep it short and in order: correct what changed, remove what is outdated, and put no secret in it.
- It is background. The instructions above and what the user asks for come first."""


class Memory(Hook):
    """Reads the files when a run starts and after the agent wrote to one, and adds them to the system prompt."""

    name = "memory"
    timeout_s = 30.0
    on_failure = "open"

    def __init__(self, files: FileSystem, paths: Sequence[str]) -> None:
        self._files = files
        self._paths = resolved(paths)

    async def execution_start(self, state: AgentState) -> AgentState:
        return await self._remembered(state)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        path = (tool.call.arguments or {}).get("path")  # in its final form: absolute and normalised
        wrote = tool.call.name in ("edit_file", "write_file") and tool.succeeded and path in self._paths
        return await self._remembered(state) if wrote else state

    async def before_inference(self, state: AgentState) -> AgentState:
        text, files = state.notes.get(TEXT), state.notes.get(FILES)
        if not isinstance(text, str) or not isinstance(files, dict) or not files:
            return state  # nothing to read, or the hook failed, which is an event
        listed = "\n".join(f"  - {path}{remark}" for path, remark in files.items())
        guidelines = _GUIDELINES.format(files=listed)
        return state.with_section(f"<agent_memory>\n{text or '(empty)'}\n</agent_memory>\n\n{guidelines}")

    async def _remembered(self, state: AgentState) -> AgentState:
        texts: list[str] = []
        files: dict[str, JsonValue] = {}
        left_bytes = LIMIT_BYTES
        for path in self._paths:
            text, size_bytes, files[path] = await self._read(path, min(FILE_LIMIT_BYTES, left_bytes))
            left_bytes -= size_bytes
            if text:
                texts.append(text)
        return state.with_note(TEXT, "\n\n---\n\n".join(texts)).with_note(FILES, files)

    async def _read(self, path: str, limit_bytes: int) -> tuple[str, int, str]:
        """Return a file's text, its size in bytes, and a remark on the file."""
        if limit_bytes <= 0:
            return "", 0, f" (left out: the files before it fill the {LIMIT_BYTES} bytes there are; shorten them)"
        try:
            page = await self._files.read_lines(path, limit=limit_bytes, limit_bytes=limit_bytes)
        except FileNotFoundError:
            return "", 0, " (not there yet: write_file makes it)"
        except Exception:  # a directory, a link, a failing sandbox: the run continues without this file
            return "", 0, " (left out: it could not be read)"
        if page.binary:
            return "", 0, " (left out: it is not UTF-8 text)"
        text = _TAG.sub("&lt;", page.data.decode("utf-8", "replace").strip())
        if page.more:
            shown = f"the first {len(page.data)} of {page.size_bytes} bytes of {path}"
            text = f"{text}\n[cut here: these are {shown}. read_file shows the rest; make the file shorter]"
        return text, len(page.data), ""


def memory(files: FileSystem, paths: Sequence[str]) -> Capability:
    """Return the memory in the files at `paths`, which may be relative to the workspace.

    Raises InvalidPath, and TypeError for a string instead of a list.
    """
    return Capability("memory", hooks=(Memory(files, paths),))
