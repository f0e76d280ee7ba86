"""Tools that a service runs itself, on the path of every tool call.

The policy judges the call as `caller/NAME`, an approval can be asked for, and the journal and the audit record it. Then
the service runs its tool, in its own process, and sends what came of it; rules on results, redaction and eviction apply
to that as to any result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from agent.messages import ToolCall, ToolResult
from agent.tools.tool import ToolContext
from gateway.tool_calls.service_executor import ServiceExecutor

PREFIX = "caller/"
"""What the names of such tools begin with, in policies, approvals and records."""

HaveRun = Callable[[str, Mapping[str, JsonValue]], Awaitable[ToolResult]]
"""Has the service run its tool, given the call's id and its arguments; returns what came of it."""


@dataclass(eq=False)
class CallerTool(ServiceExecutor):
    """Has a service run a tool of its own, for at most `limit_s`."""

    have_run: HaveRun
    limit_s: float

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        try:
            async with asyncio.timeout(self.limit_s):
                return await self.have_run(context.call_id, call.arguments or {})
        except TimeoutError:
            return ToolResult.error(
                f"the caller sent no result within {self.limit_s:g} s, the policy's limits.timeout_s; what its tool "
                "did is not known",
                outcome="timed_out",
            )
