"""What a service does to files, down the same way as any tool call: the room that every such call shares.

Each kind stands in for the tools of one call: policy judges its path, the journal has it, and its outcome goes past.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from agent.judged_call import JudgedCall
from agent.messages import ToolResult
from agent.tools.tool import ToolContext
from gateway.errors import AirlockError, PermissionDenied
from gateway.tool_calls.service_executor import ServiceExecutor
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.errors import SandboxError, said_outside


class FileCall(ServiceExecutor):
    """What all share: one path, and an error kept for the service to raise."""

    def __init__(self, sandbox: ThreadSandbox) -> None:
        self._sandbox = sandbox
        self.moved_bytes = 0
        self.error: SandboxError | AirlockError | None = None
        # What the service asked for: all but the path is in the call that was made, and not in what it executes.
        self.asked: Mapping[str, JsonValue] = {}

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Do it to the path that was judged."""
        del context
        arguments = call.call.arguments or {}
        path = str(arguments["path"])
        try:
            if {**arguments, "path": None} != {**self.asked, "path": None}:
                raise PermissionDenied("a hook rewrote a file operation; only its path may be changed")
            return ToolResult(content=(await self._work(path)).encode())
        except (SandboxError, AirlockError) as error:
            self.error = error
            return ToolResult.error(said_outside(error))

    async def _work(self, path: str) -> str:
        """Return what the journal is told of it."""
        raise NotImplementedError
