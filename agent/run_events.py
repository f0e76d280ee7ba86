"""The events at the start and the end of a run, and its outcomes that the loop itself writes."""

from __future__ import annotations

from pydantic import JsonValue

from agent.continuation import ContinuationDecision, ContinuationOutcome
from agent.events import EventSink, RunStatus, emit
from agent.state import AgentState, CurrentExecution
from agent.tools.approval import Suspended


def emit_started(events: EventSink, state: AgentState) -> None:
    """Emit run_started, or run_resumed for a stored state."""
    if state.started:
        emit(events, "run_resumed", step=state.steps, agent=state.agent, thread=state.thread)
        return
    task = next((message.content for message in reversed(state.messages) if message.role == "user"), "")
    emit(events, "run_started", task=task, agent=state.agent, thread=state.thread)


def emit_suspended(events: EventSink, state: AgentState, suspended: Suspended) -> None:
    """Emit run_suspended with the approvals that the run waits for."""
    approvals: list[JsonValue] = [sought.model_dump() for sought in suspended.sought]
    emit(events, "run_suspended", step=state.steps, approvals=approvals)


def emit_finished(events: EventSink, state: AgentState, status: RunStatus, stop: ContinuationOutcome) -> None:
    """Emit run_finished."""
    emit(
        events,
        "run_finished",
        status=status,
        stop={"hook": stop.hook, "rule": stop.rule, "reason": stop.reason},
        answer=state.answer,
        steps=state.steps,
        usage=state.usage.model_dump(),
        spent=state.spent.model_dump(),
        **times(state),
    )


def times(of: AgentState | CurrentExecution) -> dict[str, JsonValue]:
    """Return where the time of a run or a step went, as events have it."""
    return {
        "hooks_ms": round(of.hooks_s * 1000, 3),
        "model_ms": round(of.model_s * 1000, 3),
        "model_wait_ms": round(of.model_wait_s * 1000, 3),
        "tools_ms": round(of.tools_s * 1000, 3),
    }


def outcome(
    rule: str, reason: str, decision: ContinuationDecision = ContinuationDecision.FORBID
) -> ContinuationOutcome:
    """Return an outcome that the loop itself writes."""
    return ContinuationOutcome(decision=decision, hook="loop", rule=rule, reason=reason)
