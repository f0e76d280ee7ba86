"""The events of a tool call: its start, its verdict, its output while it runs, and its end."""

from __future__ import annotations

import codecs

from pydantic import JsonValue

from agent.coalescing import Coalescer
from agent.decisions import Verdict
from agent.events import EventSink, emit
from agent.filesystem import OutputStream
from agent.messages import ToolCall, ToolResult
from agent.state import ToolExecution


def emit_started(events: EventSink, call: ToolCall) -> None:
    """Emit tool_call_started."""
    emit(events, "tool_call_started", call_id=call.id, name=call.name, arguments=call.arguments)


def emit_verdict(events: EventSink, asked: ToolCall, judged: ToolCall, verdict: Verdict) -> None:
    """Emit hook_verdict for a call as requested and as judged."""
    emit(
        events,
        "hook_verdict",
        call_id=asked.id,
        verdict=verdict.kind.public_name,
        hook=verdict.hook,
        rule=verdict.rule,
        reason=verdict.reason,
        **_policy(verdict),
        arguments=judged.arguments if judged.arguments != asked.arguments else None,
    )


def emit_finished(events: EventSink, tool: ToolExecution, result: ToolResult) -> None:
    """Emit tool_call_finished."""
    verdict = tool.verdict
    emit(
        events,
        "tool_call_finished",
        call_id=tool.call.id,
        name=tool.call.name,
        verdict=verdict.kind.public_name if verdict else "",
        rule=verdict.rule if verdict else "",
        reason=verdict.reason if verdict else "",
        **_policy(verdict),
        approval_id=tool.approval_id,
        outcome=result.outcome,
        exit_code=result.exit_code,
        is_error=result.is_error,
        withheld_by=result.withheld_by,
        would_be_withheld_by=result.would_be_withheld_by,
        content=result.content.decode("utf-8", "replace"),
        note=result.note,
        evicted=result.evicted.model_dump() if result.evicted else None,
        duration_ms=round(tool.duration_s * 1000, 3),
    )


def _policy(verdict: Verdict | None) -> dict[str, JsonValue]:
    policy = verdict.policy if verdict is not None else None
    would_be: JsonValue = None
    if policy is not None and policy.would_be:
        would_be = {"verdict": policy.would_be, "rule": policy.would_be_rule}
    return {"policy_version": policy.version if policy is not None else "", "would_be": would_be}


class OutputEvents:
    """Turns a program's output into tool_output events: decoded per stream, coalesced, in order of arrival."""

    def __init__(self, events: EventSink, call_id: str) -> None:
        self._events = events
        self._call_id = call_id
        self._stream: OutputStream = "stdout"
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._text = Coalescer(self._deliver)

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if stream != self._stream:
            self._text.flush()
            self._stream = stream
        self._text.add(self._decoders[stream].decode(data))

    def flush(self) -> None:
        self._text.flush()

    def _deliver(self, text: str) -> None:
        emit(self._events, "tool_output", call_id=self._call_id, stream=self._stream, text=text)
