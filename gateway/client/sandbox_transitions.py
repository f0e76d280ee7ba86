"""What became of a sandbox, as the Python client gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.errors import InvalidArgument
from gateway.v1 import sandbox_service_pb2 as pb

_PREFIX = "SANDBOX_STATE_"
_UNKNOWN = "SANDBOX_STATE_UNSPECIFIED"


@dataclass(frozen=True)
class SandboxTransition:
    """What became of a sandbox: creating, running, idle_stopped, failed or removed. `reason` is for people.

    What became later has a greater `id`.
    """

    thread: str
    sandbox_id: str
    state: str
    reason: str
    at: datetime
    engine: str
    id: int


def transition_of(one: pb.SandboxTransition) -> SandboxTransition:
    """Return a message's transition."""
    at, state = one.at.ToDatetime(UTC), state_name(one.state)
    return SandboxTransition(one.thread, one.sandbox_id, state, one.reason, at, one.engine, one.id)


def state_name(number: int) -> str:
    """Return what a state is called; one that this client does not know is "unspecified"."""
    known = pb.SandboxState.Name(number) if number in pb.SandboxState.values() else _UNKNOWN
    return known.removeprefix(_PREFIX).lower()


def state_number(name: str) -> int:
    """Return the number of a state, 0 for ""; InvalidArgument for one that there is not."""
    try:
        return pb.SandboxState.Value(_PREFIX + name.upper()) if name else 0
    except ValueError:
        known = [state_name(number) for number in pb.SandboxState.values() if number]
        raise InvalidArgument(f"state: {name[:32]!r} is none: {', '.join(known)}") from None
