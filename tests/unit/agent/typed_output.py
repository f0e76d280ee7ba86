"""What a type checker knows of an agent's output: `mypy` checks this file (deploy/check)."""

from __future__ import annotations

from typing import Any, assert_type

from pydantic import BaseModel

from agent import Agent, AgentState, ScriptedModel, stream


class Forecast(BaseModel):
    """What the forecaster answers."""

    rain: bool


def unparametrized(agent: Agent, state: AgentState) -> AgentState:
    return state


async def outputs(model: ScriptedModel) -> None:
    forecaster = Agent(model=model, output=Forecast)
    final = await forecaster.run(AgentState.start("How is the weather?"))
    assert_type(final.output, Forecast)
    assert_type(final.next_run("r2", "And tomorrow?").output, Forecast)
    async with stream(forecaster, AgentState.start("And on Sunday?")) as run:
        assert_type((await run.state()).output, Forecast)
    plain = Agent(model=model)
    assert_type((await plain.run(unparametrized(forecaster, final))).output, Any)
    by_schema = Agent(model=model, output={"type": "integer"})
    assert_type((await by_schema.run(AgentState.start("3 + 4?"))).output, Any)
    final.output.snow  # type: ignore[attr-defined]  # noqa: B018
