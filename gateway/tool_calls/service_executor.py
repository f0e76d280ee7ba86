"""What stands in for the tools of a service's call that is no call of a model: its arguments are the service's own."""

from __future__ import annotations

from collections.abc import Sequence

from agent.judged_call import JudgedCall
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.tools.tool import ToolContext


class ServiceExecutor:
    """No tools to list and nothing to check; satisfies agent.tools.tool.ToolExecutor once it has `execute`."""

    def specs(self) -> Sequence[ToolSpec]:
        """List nothing: no model is shown it."""
        return ()

    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call as it is: the service has brought it into its final form."""
        return JudgedCall.of(call)

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Do what the judged call says."""
        raise NotImplementedError
