"""What became of a sandbox, as the Python client gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.v1 import sandbox_service_pb2 as pb


@dataclass(frozen=True)
class SandboxTransition:
    """What became of a sandbox: creating, running, idle_stopped, failed or removed. `reason` is for people."""

    thread: str
    sandbox_id: str
    state: str
    reason: str
    at: datetime
    engine: str


def transition_of(one: pb.SandboxTransition) -> SandboxTransition:
    """Return a message's transition; a state that this client does not know is "unspecified"."""
    known = pb.SandboxState.Name(one.state) if one.state in pb.SandboxState.values() else "SANDBOX_STATE_UNSPECIFIED"
    state = known.removeprefix("SANDBOX_STATE_").lower()
    return SandboxTransition(one.thread, one.sandbox_id, state, one.reason, one.at.ToDatetime(UTC), one.engine)
