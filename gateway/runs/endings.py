"""How runs end other than by their agent."""

from __future__ import annotations

from typing import Final

from pydantic import JsonValue

from agent.events import Event

GATEWAY_STOPPED: Final[dict[str, JsonValue]] = {
    "hook": "gateway",
    "rule": "gateway_stopped",
    "reason": "the gateway was stopped while the run was under way; start it again",
}


def finished(status: str, rule: str, reason: str) -> Event:
    """Return the last event of a run that the gateway ends."""
    stop: dict[str, JsonValue] = {"hook": "gateway", "rule": rule, "reason": reason}
    return Event("run_finished", {"status": status, "stop": stop, "answer": ""})


def cancelled() -> Event:
    """Return the last event of a cancelled run."""
    return finished("cancelled", "cancelled", "the run was cancelled")
