"""Typed events of a run, in one order. A sink takes them without blocking; sequence numbers are given by the log.

Event types and their payloads (JSON):

    run_started          task, agent, thread
    run_resumed          step, agent, thread, because               (instead, when the run goes on from a stored state;
                         where a gateway hosts it, because is approval, gateway_lost or gateway_stopped)
    run_suspended        step, approvals [{approval_id, call_id, name, rule, reason}]    (run_resumed comes next, and
                         tool_call_started and hook_verdict of the step's calls once more)
    step_started         step
    model_waiting        step, reason                               (for its turn: other inferences are under way)
    model_delta          text                                       (coalesced)
    model_finished       step, text, tool_calls [{id, name, arguments}], finish_reason, usage, duration_ms
    model_failed         step, error                                (each attempt that failed)
    tool_call_started    call_id, name, arguments
    hook_verdict         call_id, verdict (allow|ask|deny), hook, rule, reason, policy_version, would_be (what rules in
                         shadow would have made of it, or null), arguments (the final ones, where hooks rewrote them, or
                         null)
    tool_output          call_id, stream, text                      (coalesced)
    tool_call_finished   call_id, name, verdict, rule, reason, policy_version, would_be, approval_id, outcome,
                         exit_code, is_error, withheld_by (the rule that kept the result back, or ""),
                         would_be_withheld_by (the same, of rules in shadow), content, note, evicted, duration_ms (of
                         the execution alone, 0 for a blocked call)
    hook_failed          hook, point, on_failure, timeout_s, error
    state_changed        hook, point, metadata {key: value}, large [key], removed [key], messages (how many, or null)
    subagent_started     task, agent, thread
    subagent_finished    as run_finished
    step_finished        step, hooks_ms, model_ms, model_wait_ms (for its turn, not in model_ms), tools_ms
    workspace_saved      step, snapshot_id, files                   (where a policy has steps kept)
    workspace_not_saved  step, reason                               (once in a run: it cannot be forked at that step)
    run_finished         status, stop {hook, rule, reason}, answer, steps, usage, hooks_ms, model_ms, model_wait_ms,
                         tools_ms,
                         spent {steps, tool_calls, usage} (with its subagents: what limits look at)
What was lost with a process is done again or told by another (agent.recovery): after run_resumed because of a gateway
no event comes a second time for a step or a call that has one, but for pieces of text: a model that is asked again
writes other deltas than those before, and model_finished, which is kept before it is shown, has the answer that counts.
An event of a subagent has besides `within`: the call_id of the spawn_subagent call that it belongs to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue


@dataclass(frozen=True)
class Event:
    """One thing that happened; the payload is as the table in this module says."""

    type: str
    payload: dict[str, JsonValue]


EventSink = Callable[[Event], None]

_log = logging.getLogger(__name__)


def discard(event: Event) -> None:
    """A sink for those who do not listen."""


def emit(sink: EventSink, type_: str, **payload: JsonValue) -> None:
    """Hand an event to the sink. A sink that raises must not break the run: that is logged, and the run goes on."""
    if sink is discard:
        return
    try:
        sink(Event(type_, payload))
    except Exception:  # a sink of the host's: what is not told must not end what it tells of
        _log.exception("the event sink failed on %s", type_)
