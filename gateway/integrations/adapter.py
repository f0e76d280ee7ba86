"""What adapters share: the workspace, a client by the environment, and what they make of tool results."""

import json
import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from airlock import Client, ToolResult

WORKSPACE = "/workspace"
NOT_RUN = 126
"""The exit code of a command that did not run, as a shell has it for a file that it may not execute."""
_EXIT_CODES: Mapping[str, int] = {"timed_out": 124, "out_of_memory": 137}
_NEXT = re.compile(r"Next: \w+ (\{.*\})\]$", re.MULTILINE)
_OUTPUT_LIMIT_BYTES = 1024 * 1024


def connect(address: str, api_key: str) -> Client:
    """Return a client of a gateway, by default of the one and with the key that the environment names."""
    key = api_key or os.environ.get("AIRLOCK_API_KEY", "")
    if not key:
        raise ValueError("api_key: pass one, or set AIRLOCK_API_KEY; `airlock key create` makes a key")
    return Client(address or os.environ.get("AIRLOCK_ADDRESS", "127.0.0.1:7443"), key)


def in_workspace(path: str | os.PathLike[str]) -> str:
    """Return the path below the workspace; the gateway normalizes it before it judges it."""
    return posixpath.join(WORKSPACE, path)


def refusal(result: ToolResult) -> str:
    """Return why a call did not run: the rule that denied it, or the approval that it waits for. Empty if it ran."""
    rule = f"rule {result.rule}: {result.reason.rstrip('.')}"
    if result.verdict == "ask" and result.outcome == "waiting":
        return (
            f"This call waits for the approval {result.approval_id} ({rule}). It has not run; make the same call again "
            "once a person has approved it."
        )
    if result.verdict != "deny":
        return ""
    if result.edited_arguments is not None:
        return (
            "This call was approved with other arguments and has not run. Make it with these: "
            f"{json.dumps(dict(result.edited_arguments))}"
        )
    return f"This call was denied by the {rule}. It has not run."


def exit_code_of(result: ToolResult) -> int:
    """Return a command's exit code, or for one that was killed the code that a shell gives it."""
    return _EXIT_CODES.get(result.outcome, 1) if result.exit_code is None else result.exit_code


def next_call(result: ToolResult) -> dict[str, Any]:
    """Return the arguments of the next page, which the note of a page names; none after the last one."""
    found = _NEXT.search(result.note)
    return json.loads(found[1]) if found else {}


async def whole_output(client: Client, result: ToolResult) -> str | None:
    """Return all output of a command, also one whose result has only its head and tail; None if that cannot be had.

    Large output is read from its file in pages, as a model reads it: with secrets redacted, and where a rule allows it.
    """
    if result.evicted is None:
        return result.content
    if result.evicted.size_bytes > _OUTPUT_LIMIT_BYTES or result.evicted.incomplete:
        return None
    pages: list[str] = []
    asked: dict[str, Any] = {"path": result.evicted.path, "byte_offset": 0}
    while asked:
        page = await client.call_tool("read_file", asked, thread=result.thread)
        if page.is_error or refusal(page):
            return None
        pages.append(page.content)
        asked = next_call(page)
    return "".join(pages)


def rest_of_output(result: ToolResult) -> str:
    """Return the sentence that says where the output is of which a result has only the head and the tail."""
    if result.evicted is None:
        return ""
    return f"[all {result.evicted.size_bytes} bytes of the output are in {result.evicted.path}]"
