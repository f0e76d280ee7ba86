"""A service's file call: what a hook may change of it, and what it may not."""

from __future__ import annotations

from typing import cast

import pytest

from agent.messages import ToolCall
from agent.tool_call import JudgedCall
from agent.tools.tool import ToolContext
from gateway.errors import PermissionDenied
from gateway.tool_calls.service_executor import Removal
from gateway.tool_calls.thread_sandbox import ThreadSandbox

ASKED = {"path": "/workspace/a", "operation": "remove"}


class _Removed:
    def __init__(self) -> None:
        self.paths: list[str] = []

    async def remove(self, path: str, *, recursive: bool) -> None:
        assert not recursive
        self.paths.append(path)


@pytest.mark.parametrize("changed", [{"recursive": True}, {"operation": "stat"}, {"pattern": "*"}])
async def test_a_call_that_a_hook_made_another_than_the_service_asked_for_is_not_made(changed: dict[str, str]) -> None:
    sandbox = _Removed()
    removal = Removal(recursive=False, missing_ok=False)
    removal.sandbox, removal.asked = cast(ThreadSandbox, sandbox), ASKED
    call = ToolCall(id="c", name="write_file", arguments={**ASKED, **changed})
    result = await removal.execute(JudgedCall.of(call), ToolContext(call_id="c"))
    assert result.is_error
    assert isinstance(removal.error, PermissionDenied)
    assert sandbox.paths == []


async def test_another_path_that_was_judged_is_the_one() -> None:
    sandbox = _Removed()
    removal = Removal(recursive=False, missing_ok=False)
    removal.sandbox, removal.asked = cast(ThreadSandbox, sandbox), ASKED
    call = ToolCall(id="c", name="write_file", arguments={**ASKED, "path": "/workspace/b"})
    assert not (await removal.execute(JudgedCall.of(call), ToolContext(call_id="c"))).is_error
    assert sandbox.paths == ["/workspace/b"]
