"""The section `retention`: how long stored data is kept."""

from __future__ import annotations

from pydantic import Field

from gateway.config.section import Section


class RetentionSettings(Section):
    """How long data is kept that no operation needs. Null keeps it for good; threads stay until they are deleted."""

    events_days: float | None = Field(
        default=None, gt=0, description="a run's events, from its end; the last event stays, since it has the outcome"
    )
    tool_calls_days: float | None = Field(default=None, gt=0, description="the journal of tool calls, from their end")
    runs_days: float | None = Field(
        default=None, gt=0, description="runs with their events and request ids, from their end"
    )
    messages_days: float | None = Field(
        default=None,
        gt=0,
        description="a thread's messages, from its last run; the thread, its metadata and its files stay",
    )
    approvals_days: float | None = Field(
        default=30.0, gt=0, description="resolved approvals with their exact arguments, and expired grants"
    )
    policy_changes_days: float | None = Field(
        default=None, gt=0, description="versions of a policy, from their replacement"
    )
    sandbox_transitions_days: float | None = Field(
        default=30.0, gt=0, description="the history of sandboxes: created, stopped, resumed, removed"
    )
    audit_days: float | None = Field(default=None, gt=0, description="the audit; its pruning is itself a record")
    request_results_hours: float = Field(
        default=24.0, gt=0, le=24.0, description="results of calls with a request id, for repeated requests"
    )
