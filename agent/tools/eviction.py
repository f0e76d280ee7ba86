"""Eviction: a result that is too large for a thread stays in a file, and only its head and tail are shown.

execute evicts its output in the sandbox. EvictionHook serves every other tool but the six file tools, whose results
come in pages. A marker between head and tail says what is left out, and which calls read it.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.filesystem import FileSystem, SpilledOutput
from agent.hooks.hook import Hook, NextToolUse
from agent.messages import Evicted, ToolResult
from agent.state import ToolExecution
from agent.tools.paths import WORKSPACE

PRIVATE_DIRECTORY = f"{WORKSPACE}/.airlock"
"""Holds files of the agent; searches skip it unless they start inside it."""

OUTPUT_DIRECTORY = f"{PRIVATE_DIRECTORY}/output"

PAGING_TOOLS = frozenset({"ls", "read_file", "write_file", "edit_file", "glob", "grep"})
"""Never evicted: their results are bounded, and a note names the call for the next page."""

# Almost innermost: rings further out see the short result; only the gateway's own rings are further in.
EVICTION_PRIORITY = -900_000

_GIT_TIMEOUT_S = 60.0
_UTF8_BYTES = 4  # what a character takes at most
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Eviction:
    """The size from which a result is evicted, and the sizes of its head and tail."""

    limit_chars: int = 80_000
    head_chars: int = 2_000
    tail_chars: int = 2_000

    def __post_init__(self) -> None:
        if self.limit_chars < 1 or self.head_chars < 0 or self.tail_chars < 0:
            raise ValueError("limit_chars must be 1 or more, head_chars and tail_chars 0 or more")
        shown_chars = self.head_chars + self.tail_chars
        if shown_chars > self.limit_chars:
            together = f"head_chars and tail_chars are {shown_chars} together, more than limit_chars"
            raise ValueError(f"{together} ({self.limit_chars}); give smaller ones")


@dataclass(eq=False)
class EvictionHook(Hook):
    """Writes a result that is too large to a file and shows head and tail; `per_tool` overrides the sizes.

    A result that cannot be written is cut too: the marker says that the rest is lost, and `evicted` is None.
    `timeout_s` bounds the writing.
    """

    files: FileSystem
    eviction: Eviction = Eviction()
    per_tool: Mapping[str, Eviction] = field(default_factory=dict)
    name = "eviction"
    priority = EVICTION_PRIORITY
    mandatory = True
    timeout_s = 60.0

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        result, call = await next_(tool), tool.call
        sizes = self.per_tool.get(call.name, self.eviction)
        if call.name in PAGING_TOOLS or result.evicted is not None or not _exceeds(result.content, sizes.limit_chars):
            return result
        head, tail = _ends(result.content, sizes.head_chars, sizes.tail_chars)
        left_out_bytes = len(result.content) - len(head) - len(tail)
        kept = Evicted(
            path=f"{OUTPUT_DIRECTORY}/{file_name(call.id)}.txt",
            size_bytes=len(result.content),
            lines=result.content.count(b"\n") + (not result.content.endswith(b"\n")),
            sha256=hashlib.sha256(result.content).hexdigest(),
            incomplete=False,
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.files.write(kept.path, result.content)
        except Exception as error:  # a full disk, a lost sandbox, ...: the call did run, and its result is still shown
            problem = " ".join((str(error) or type(error).__name__).split())[:200]
            _log.warning("the result of call %r could not be kept: %s", call.id, problem)
            lost = f"they are lost: they could not be kept in {kept.path} ({problem}). Ask for less at once"
            cut = f"\n[... {left_out_bytes} bytes left out here, and {lost} ...]\n"
            return replace(result, content=head + cut.encode("utf-8", "replace") + tail)
        await hide_from_git(self.files)
        return replace(result, content=head + marker(kept, left_out_bytes) + tail, evicted=kept)


async def hide_from_git(files: FileSystem) -> None:
    """Keep results out of the project's history, as the sandbox does for output of execute."""
    path = f"{PRIVATE_DIRECTORY}/.gitignore"
    try:
        async with asyncio.timeout(_GIT_TIMEOUT_S):
            try:
                await files.stat(path)
            except FileNotFoundError:
                await files.write(path, b"*\n")
    except Exception as error:  # the result is kept, and that is what counts
        _log.warning("%s could not be written: %s", path, type(error).__name__)


def marker(kept: SpilledOutput, left_out_bytes: int) -> bytes:
    """Return the marker: what is left out and how to read it."""
    holds = "holds the output from its start, as far as there was room" if kept.incomplete else "is the whole output"
    grep = f"grep {json.dumps({'pattern': '...', 'path': kept.path})}"
    read = f"read_file {json.dumps({'path': kept.path, 'offset': 0})}"
    where = f"{kept.path} {holds}: {kept.size_bytes} bytes, {kept.lines} lines"
    line = f"{left_out_bytes} bytes left out here. {where}. Find what you need with {grep}, or read on with {read}"
    return f"\n[... {line} ...]\n".encode("utf-8", "surrogateescape")


def file_name(call_id: str) -> str:
    """Return the call's id if it can name a file, else a digest of it."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _exceeds(content: bytes, limit_chars: int) -> bool:
    """Return whether the content has more characters; it is decoded only if its size does not decide."""
    if len(content) <= limit_chars:
        return False
    return len(content) > limit_chars * _UTF8_BYTES or len(content.decode("utf-8", "replace")) > limit_chars


def _ends(content: bytes, head_chars: int, tail_chars: int) -> tuple[bytes, bytes]:
    """Return the first and the last characters whole; a byte that is not UTF-8 counts as one."""
    # A character that the end of the window cuts is never among the first ones: those fit before it.
    first = content[: head_chars * _UTF8_BYTES].decode("utf-8", "surrogateescape")[:head_chars]
    last = content[-tail_chars * _UTF8_BYTES :].decode("utf-8", "surrogateescape")[-tail_chars:] if tail_chars else ""
    return first.encode("utf-8", "surrogateescape"), last.encode("utf-8", "surrogateescape")
