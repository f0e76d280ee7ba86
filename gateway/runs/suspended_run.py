"""The stored state of a run that may have to continue in another process: everything that its thread lacks."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict

from agent.state import AgentState


class SuspendedRun(BaseModel):
    """`policy` is the reference of the policy that the run is pinned to; "" for a run that follows.

    `sequence` is the number of the last event that belongs to the state: the events after it are not logged again.
    """

    model_config = ConfigDict(frozen=True)

    state: AgentState
    policy: str = ""
    sequence: int = 0

    @classmethod
    def of(cls, state: AgentState, policy: str, sequence: int = 0) -> Self:
        """Return what to store: messages and metadata are stored with the thread, and may be long."""
        return cls(state=state.cleared().with_(messages=(), metadata={}), policy=policy, sequence=sequence)
