"""What is stored of a run while it waits: all that its thread does not hold anyway."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict

from agent.state import AgentState


class SuspendedRun(BaseModel):
    """`policy` names the texts of the policy that the run is pinned to; it is empty where the run follows."""

    model_config = ConfigDict(frozen=True)

    state: AgentState
    policy: str = ""

    @classmethod
    def of(cls, state: AgentState, policy: str) -> Self:
        """Return what to store: messages and metadata have been kept with the thread, and may be long."""
        return cls(state=state.cleared().with_(messages=(), metadata={}), policy=policy)
