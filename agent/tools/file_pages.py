"""Pages of the file tools: what fits a page, and the note with the exact next call."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from agent.filesystem import EntriesPage
from agent.messages import ToolResult
from agent.tools.file_arguments import GlobArguments, LsArguments

PAGE_BYTES = 65_536
"""The most that a page contains."""


def encoded(text: str) -> bytes:
    """Return the bytes of a text; names that are not UTF-8 keep theirs."""
    return text.encode("utf-8", "surrogateescape")


def json_text(value: dict[str, Any]) -> bytes:
    """Return JSON on one line, without escapes if possible."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # escapes represent a name that is not UTF-8
        return json.dumps(value).encode()


def fitting(rows: Iterable[bytes]) -> list[bytes]:
    """Return the rows that fit a page, at least the first."""
    kept: list[bytes] = []
    size_bytes = 0
    for row in rows:
        size_bytes += len(row) + 3
        if kept and size_bytes > PAGE_BYTES:
            break
        kept.append(row)
    return kept


def entries_note(
    tool: str, again: dict[str, Any], asked: LsArguments | GlobArguments, kept: int, page: EntriesPage
) -> str:
    """Return the note of a page of ls or glob that shows `kept` entries; empty for the last page."""
    if not page.more and kept == len(page.entries):
        return ""
    next_call = shown_call(tool, **again, offset=asked.offset + kept, limit=asked.limit)
    known = f"of {'at least ' if tool == 'glob' else ''}{page.total}"
    return f"[{asked.offset + 1}-{asked.offset + kept} {known}. Next: {next_call}]"


def shown_call(tool: str, **arguments: object) -> str:
    """Return a call as notes show it: the tool and its arguments as JSON."""
    return f"{tool} {json.dumps(arguments)}"


def binary(path: str, size_bytes: int, offset: int = 0) -> ToolResult:
    """Return the result of read_file for a binary file."""
    return ToolResult.error(
        f"{path} is binary: it has NUL bytes or is not UTF-8 here ({size_bytes} bytes in all). Look at its bytes with "
        f"execute: od -A d -t x1z -j {offset} -N 256 {shlex.quote(path)}"
    )


def whole_characters(data: bytes) -> int:
    """Return the length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) if back >= needed else len(data) - back
    return len(data)
