"""What is stored of a run that may have to go on without this process: all that its thread lacks."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict

from agent.state import AgentState


class SuspendedRun(BaseModel):
    """`policy` names the texts of the policy that the run is pinned to; it is empty where the run follows.

    `sequence` is the number of the last event that belongs to the state: what was told after it is not told again.
    """

    model_config = ConfigDict(frozen=True)

    state: AgentState
    policy: str = ""
    sequence: int = 0

    @classmethod
    def of(cls, state: AgentState, policy: str, sequence: int = 0) -> Self:
        """Return what to store: messages and metadata have been kept with the thread, and may be long."""
        return cls(state=state.cleared().with_(messages=(), metadata={}), policy=policy, sequence=sequence)
