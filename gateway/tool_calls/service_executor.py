"""Runs a service's call in place of the tools; the service has made and checked the arguments itself."""

from collections.abc import Sequence
from dataclasses import replace

from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.tool_call import JudgedCall, Slot
from agent.tools.tool import ToolContext
from gateway.audit.call_audit import TOOL_CALL
from gateway.errors import AirlockError
from gateway.storage.audit_store import AuditEntry
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.errors import SandboxError, said_outside


class ServiceExecutor:
    """A ToolExecutor of one call that lists no tools; subclasses implement `_run`.

    `sandbox` is set before the call is judged; `error` is for the service to raise. `moved_bytes` counts what was
    streamed past the result so far, None if nothing is. `audit_kind` is the kind of the call's audit entry.
    """

    audit_kind = TOOL_CALL
    moved_bytes: int | None = None
    sandbox: ThreadSandbox
    error: SandboxError | AirlockError | None = None

    def audited(self, entry: AuditEntry) -> AuditEntry:
        """Return the audit entry of the call with what is special about it."""
        size_bytes = entry.size_bytes if self.moved_bytes is None else self.moved_bytes
        return replace(entry, kind=self.audit_kind, size_bytes=size_bytes)

    def specs(self) -> Sequence[ToolSpec]:
        """Return no tools: no model calls it."""
        return ()

    def prepare(self, call: ToolCall) -> JudgedCall:
        """Return the call as it is: the service has made it in its final form."""
        return JudgedCall.of(call)

    async def execute(self, call: JudgedCall, context: ToolContext) -> ToolResult:
        """Run the judged call."""
        try:
            return await self._run(call.call, context)
        except (SandboxError, AirlockError) as error:
            self.error = error
            return ToolResult.error(said_outside(error))

    async def _run(self, call: ToolCall, context: ToolContext) -> ToolResult:
        raise NotImplementedError


EXECUTOR = Slot[ServiceExecutor]("service executor")
"""What runs a service's call in place of the tools."""
