"""What a type checker knows of an agent's output."""

from __future__ import annotations

from pathlib import Path

from mypy import api

_ROOT = Path(__file__).parents[3]
_PROGRAM = """
from typing import Any, assert_type

from pydantic import BaseModel

from agent import Agent, AgentState, ScriptedModel, stream


class Forecast(BaseModel):
    rain: bool


def unparametrized(agent: Agent, state: AgentState) -> AgentState:
    return state


async def main(model: ScriptedModel) -> None:
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
    final.output.snow
"""


def test_the_output_has_the_type_of_the_model_that_was_asked_for(tmp_path: Path) -> None:
    program = tmp_path / "typed_output_program.py"
    program.write_text(_PROGRAM)
    options = ["--config-file", str(_ROOT / "pyproject.toml"), "--cache-dir", str(_ROOT / ".mypy_cache"), "--no-pretty"]
    said, problems, _ = api.run([*options, str(program)])
    # By its end: a cached error names the file of an earlier test run.
    wrong = f':{len(_PROGRAM.splitlines())}: error: "Forecast" has no attribute "snow"  [attr-defined]'
    assert [line.endswith(wrong) for line in said.splitlines()[:-1]] == [True], said + problems
    assert problems == ""
