"""How long the gateway keeps what it has stored: the section `retention` of the configuration."""

from __future__ import annotations

from pydantic import Field

from gateway.config.section import Section


class RetentionSettings(Section):
    """How long is kept what nobody needs to go on. Null keeps for good; a thread stays until it is deleted."""

    events_days: float | None = Field(
        default=None, gt=0, description="events of a run, from its end on; the last one stays, for it says how it ended"
    )
    tool_calls_days: float | None = Field(
        default=None, gt=0, description="the journal of tool calls, from their end on"
    )
    runs_days: float | None = Field(
        default=None, gt=0, description="runs with all their events, from their end on; a request id goes with its run"
    )
    messages_days: float | None = Field(
        default=None,
        gt=0,
        description="what was said in a thread that no run has added to since; the thread, its metadata and files stay",
    )
    approvals_days: float | None = Field(
        default=30.0,
        gt=0,
        description="approvals that are answered or expired, with their exact arguments, and grants that are over",
    )
    policy_changes_days: float | None = Field(
        default=None, gt=0, description="versions of a policy, from when another took their place"
    )
    sandbox_transitions_days: float | None = Field(
        default=30.0, gt=0, description="what became of sandboxes: made, stopped, resumed, removed"
    )
    audit_days: float | None = Field(default=None, gt=0, description="the audit; that it was pruned is itself a record")
    request_results_hours: float = Field(
        default=24.0, gt=0, le=24.0, description="results of calls with a request id, for who asks a second time"
    )
