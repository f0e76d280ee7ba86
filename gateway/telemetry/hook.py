"""Observes tool calls and hooks: a span for each call from before it is judged until its result is final.

The hook is mandatory, so that subagents' calls have spans too, and it never fails a call. It stores the run's trace
context as a note of the run, so that another gateway continues the trace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Span
from opentelemetry.util.types import AttributeValue

from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution
from agent.tool_call import Slot
from gateway.policy import fields as policy_tools
from gateway.redaction.redactor import Redactor
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import PROPAGATOR, BoundedNames, Telemetry, current, failed

TRACEPARENT = "telemetry.traceparent"
"""The note of a run with the W3C traceparent of its span."""
OUTERMOST_PRIORITY = 1_000_001
_SHOWN_CHARS = 4096
_NAME_CHARS = 128
log = structlog.get_logger(__name__)

TOOLS = (
    (policy_tools.TOOLS - {policy_tools.CONNECT}) | frozenset(policy_tools.AGENT_TOOLS) | policy_tools.JUDGED_AS.keys()
)
"""The tools that have a label of their own; a model may call any name."""
tool_label = BoundedNames(len(TOOLS), TOOLS)


@dataclass
class _Open:
    span: Span
    started_s: float


_OPEN = Slot[_Open]("span of the call")


class TelemetryHook(Hook):
    """Observes the tool calls of a thread or of a run."""

    name = "telemetry"
    priority = OUTERMOST_PRIORITY
    mandatory = True

    def __init__(self, telemetry: Telemetry, tenant: str, thread: str, run_id: str | None, redactor: Redactor) -> None:
        self._telemetry = telemetry
        self._tenant = tenant
        self._redactor = redactor
        self._ids = {a.TENANT: tenant, a.CONVERSATION: thread} | ({a.RUN_ID: run_id} if run_id else {})

    async def execution_start(self, state: AgentState) -> AgentState:
        """Store the trace of the run with it."""
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier)
        # A subagent's run is part of its parent's.
        if "traceparent" not in carrier or state.depth:
            return state
        return state.with_note(TRACEPARENT, carrier["traceparent"])

    async def before_tool_use(self, state: AgentState) -> AgentState:
        return self._observed(self._begin, state)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        opened = tool.context.get(_OPEN)
        if opened is None or opened.span is INVALID_SPAN:
            return await next_(tool)
        with current(opened.span):
            return await next_(tool)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """End the span of a call. This hook is the last to see the result."""
        return self._observed(self._end, state)

    def _observed(self, observe: Callable[[ToolExecution, str], object], state: AgentState) -> AgentState:
        try:
            observe(state.current.tool, state.agent)
        except Exception:  # telemetry must not fail the call
            log.exception("a tool call is not observed")
        return state

    def hook_ran(self, point: str, hook: str, state: AgentState, elapsed_s: float) -> None:
        """Record how long another hook took, on the span that it ran in."""
        if hook == self.name:
            return
        if point == "before_tool_use" and hook == "policy":
            self._telemetry.instruments.add("airlock.policy.decision.duration", elapsed_s)
        tool = state.current.tool_index is not None and point in {"before_tool_use", "after_tool_use"}
        opened = state.current.tool.context.get(_OPEN) if tool else None
        span = opened.span if opened is not None else trace.get_current_span()
        if span.is_recording():
            span.add_event(
                a.HOOK_EVENT, {a.HOOK_NAME: hook, a.HOOK_POINT: point, a.HOOK_DURATION_S: round(elapsed_s, 6)}
            )

    def suspended(self, state: AgentState) -> None:
        """End the spans of the calls of a run that starts to wait; they continue elsewhere."""
        for tool in state.current.tool_executions:
            opened = tool.context.pop(_OPEN)
            if opened is not None:
                opened.span.set_attribute(a.OUTCOME, "waiting")
                opened.span.end()

    def _begin(self, tool: ToolExecution, agent: str) -> _Open:
        call = tool.call
        label = tool_label(call.name)
        name = call.name[:_NAME_CHARS] if label == call.name else self._redactor.text(call.name)[:_NAME_CHARS]
        attributes = {
            a.OPERATION: "execute_tool",
            a.AGENT: agent,
            a.TOOL_NAME: name,
            a.TOOL_TYPE: "function",
            a.TOOL_CALL_ID: call.id,
            **self._ids,
        }
        opened = _Open(self._telemetry.child(f"execute_tool {label}", attributes), self._telemetry.clock())
        tool.context.set(_OPEN, opened)
        return opened

    def _end(self, tool: ToolExecution, agent: str) -> None:
        # A call that another gateway judged has no span here yet.
        opened = tool.context.get(_OPEN) or self._begin(tool, agent)
        tool.context.pop(_OPEN)
        telemetry, result, verdict = self._telemetry, tool.result, tool.verdict
        kind = verdict.kind.public_name if verdict is not None else ""
        outcome = result.outcome if result is not None else ""
        label = tool_label(tool.call.name)
        telemetry.instruments.add(
            "airlock.tool.call.duration",
            telemetry.clock() - opened.started_s,
            {a.TOOL_NAME: label, a.VERDICT: kind, a.OUTCOME: outcome},
        )
        tenant = telemetry.tenants(self._tenant)
        telemetry.instruments.add("airlock.tenant.tool.calls", 1, {a.TENANT: tenant, a.VERDICT: kind})
        if not opened.span.is_recording():
            return
        attributes: dict[str, AttributeValue] = {a.VERDICT: kind, a.OUTCOME: outcome}
        if verdict is not None:
            attributes |= {a.RULE: verdict.rule, a.POLICY_VERSION: verdict.policy_version}
        if tool.approval_id:
            attributes[a.APPROVAL_ID] = tool.approval_id
        if result is not None and result.exit_code is not None:
            attributes[a.EXIT_CODE] = result.exit_code
        opened.span.set_attributes({**attributes, **self._recorded(tool)})
        if result is None or result.is_error:
            failed(opened.span, outcome or "no_result")
        opened.span.end()

    def _recorded(self, tool: ToolExecution) -> Mapping[str, str]:
        """Return the arguments and the result if the operator wants them on spans: redacted and cut."""
        recorded, settings = {}, self._telemetry.settings
        if settings.record_arguments:
            text = tool.judged.canonical.decode()[: 4 * _SHOWN_CHARS]
            recorded[a.TOOL_ARGUMENTS] = self._redactor.text(text)[:_SHOWN_CHARS]
        if settings.record_results and tool.result is not None:
            # The innermost hook redacted all of it; this is for what hooks further out may have added.
            text = tool.result.content[: 4 * _SHOWN_CHARS].decode("utf-8", "replace")
            recorded[a.TOOL_RESULT] = self._redactor.text(text)[:_SHOWN_CHARS]
        return recorded
