"""File operations of services take the path of every tool call.

Each kind runs one call in place of the tools: the policy judges its path, and the journal and the audit record it. The
bytes do not pass through the result.
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
    """One operation on one path; `error` is for the service to raise."""

    def __init__(self, sandbox: ThreadSandbox) -> None:
        self._sandbox = sandbox
        self.moved_bytes = 0
        self.error: SandboxError | AirlockError | None = None
        # What the service asked for. A hook may rewrite the path only: the rest is not read from the judged call.
        self.asked: Mapping[str, JsonValue] = {}

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Run the operation on the judged path."""
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
        """Run the operation; return the text of its result, for the journal."""
        raise NotImplementedError
