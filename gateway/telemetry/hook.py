"""Tool calls and hooks, seen: a span for each call from before it is judged until its result is final.

The hook is mandatory, so that subagents' calls have their spans too, and it cannot fail: what it does is telling, and
no call may be lost for it. What it keeps is about calls in flight; of the run it keeps a note, the trace that the run
belongs to, by which another gateway goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from agent.call_context import Slot
from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolResult
from agent.state import AgentState, ToolExecution
from gateway.policy import document as policy_tools
from gateway.telemetry import attributes as a
from gateway.telemetry.bounded_names import BoundedNames
from gateway.telemetry.telemetry import Telemetry, current, failed

TRACEPARENT = "telemetry.traceparent"
"""The note of a run that names its span: W3C's traceparent."""
OUTERMOST_PRIORITY = 1_000_001
_SHOWN_CHARS = 4096
_NAME_CHARS = 128
_PROPAGATOR = TraceContextTextMapPropagator()
log = structlog.get_logger(__name__)

TOOLS = (policy_tools.TOOLS - {policy_tools.CONNECT}) | policy_tools.AGENT_TOOLS
"""The tools that have a label of their own: all that Airlock has. A model may call anything by any name."""
tool_label = BoundedNames(len(TOOLS), TOOLS)


class Redacts(Protocol):
    """What takes secrets out; see gateway.redaction.Redactor."""

    def text(self, text: str) -> str: ...


@dataclass
class _Open:
    span: Span
    started_s: float


_OPEN = Slot[_Open]("span of the call")


class TelemetryHook(Hook):
    """Tells of the tool calls of one thread, or of one run."""

    name = "telemetry"
    priority = OUTERMOST_PRIORITY
    mandatory = True

    def __init__(
        self, telemetry: Telemetry, tenant: str, thread: str, run_id: str | None, redactor: Redacts | None
    ) -> None:
        self._telemetry = telemetry
        self._tenant = tenant
        self._redactor = redactor
        self._whose = {a.TENANT: tenant, a.CONVERSATION: thread} | ({a.RUN_ID: run_id} if run_id else {})

    async def execution_start(self, state: AgentState) -> AgentState:
        """Keep with the run which trace it belongs to."""
        carried: dict[str, str] = {}
        _PROPAGATOR.inject(carried)
        # A subagent's run is part of its parent's.
        if "traceparent" not in carried or state.depth:
            return state
        return state.with_note(TRACEPARENT, carried["traceparent"])

    async def before_tool_use(self, state: AgentState) -> AgentState:
        """Begin the span of a call."""
        try:
            self._begin(state.current.tool, state.agent)
        except Exception:  # telling must not cost the call
            log.exception("a tool call is not told of")
        return state

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        """Have what the call does be below its span."""
        opened = tool.context.get(_OPEN)
        if opened is None or opened.span is INVALID_SPAN:
            return await next_(tool)
        with current(opened.span):
            return await next_(tool)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        """End the span of a call; this is the last to see its result."""
        try:
            self._end(state.current.tool, state.agent)
        except Exception:  # as above
            log.exception("a tool call is not told of")
        return state

    def hook_ran(self, point: str, hook: str, state: AgentState, elapsed_s: float) -> None:
        """Tell how long another hook took, on the span that it ran in."""
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
        """End the spans of the calls of a run that begins to wait: they go on elsewhere."""
        for tool in state.current.tool_executions:
            opened = tool.context.pop(_OPEN)
            if opened is not None:
                opened.span.set_attribute(a.OUTCOME, "waiting")
                opened.span.end()

    def _begin(self, tool: ToolExecution, agent: str) -> _Open:
        call = tool.call
        label = tool_label(call.name)
        name = call.name[:_NAME_CHARS] if label == call.name else self._redacted(call.name)[:_NAME_CHARS]
        attributes = {
            a.OPERATION: "execute_tool",
            a.AGENT: agent,
            a.TOOL_NAME: name,
            a.TOOL_TYPE: "function",
            a.TOOL_CALL_ID: call.id,
            **self._whose,
        }
        opened = _Open(self._telemetry.child(f"execute_tool {label}", attributes), self._telemetry.clock())
        tool.context.set(_OPEN, opened)
        return opened

    def _end(self, tool: ToolExecution, agent: str) -> None:
        # One that was judged by another gateway has no span here yet.
        opened = tool.context.get(_OPEN) or self._begin(tool, agent)
        tool.context.pop(_OPEN)
        telemetry, result, verdict = self._telemetry, tool.result, tool.verdict
        said = verdict.kind.public_name if verdict is not None else ""
        outcome = result.outcome if result is not None else ""
        label = tool_label(tool.call.name)
        telemetry.instruments.add(
            "airlock.tool.call.duration",
            telemetry.clock() - opened.started_s,
            {a.TOOL_NAME: label, a.VERDICT: said, a.OUTCOME: outcome},
        )
        tenant = telemetry.tenants(self._tenant)
        telemetry.instruments.add("airlock.tenant.tool.calls", 1, {a.TENANT: tenant, a.VERDICT: said})
        if not opened.span.is_recording():
            return
        told: dict[str, AttributeValue] = {a.VERDICT: said, a.OUTCOME: outcome}
        if verdict is not None:
            told |= {a.RULE: verdict.rule, a.POLICY_VERSION: verdict.policy_version}
        if tool.approval_id:
            told[a.APPROVAL_ID] = tool.approval_id
        if result is not None and result.exit_code is not None:
            told[a.EXIT_CODE] = result.exit_code
        opened.span.set_attributes({**told, **self._recorded(tool)})
        if result is None or result.is_error:
            failed(opened.span, outcome or "no_result")
        opened.span.end()

    def _recorded(self, tool: ToolExecution) -> Mapping[str, str]:
        """Return what was said, where the operator wants it on spans: without secrets, and its beginning only."""
        recorded, settings = {}, self._telemetry.settings
        if settings.record_arguments:
            text = json.dumps(tool.call.arguments)[: 4 * _SHOWN_CHARS]
            recorded[a.TOOL_ARGUMENTS] = self._redacted(text)[:_SHOWN_CHARS]
        if settings.record_results and tool.result is not None:
            # The whole of it was redacted by the innermost ring; once more, for hooks further out may have added to it.
            text = tool.result.content[: 4 * _SHOWN_CHARS].decode("utf-8", "replace")
            recorded[a.TOOL_RESULT] = self._redacted(text)[:_SHOWN_CHARS]
        return recorded

    def _redacted(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.text(text)
