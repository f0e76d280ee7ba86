"""Runs a service's call in place of the tools; the service has made and checked the arguments itself."""

from __future__ import annotations

from collections.abc import Sequence

from agent.judged_call import JudgedCall
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.tools.tool import ToolContext


class ServiceExecutor:
    """A ToolExecutor that lists no tools; subclasses implement `execute`."""

    def specs(self) -> Sequence[ToolSpec]:
        """Return no tools: no model calls it."""
        return ()

    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call as it is: the service has made it in its final form."""
        return JudgedCall.of(call)

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Run the judged call."""
        raise NotImplementedError
