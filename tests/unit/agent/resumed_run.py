"""A run for test_resume, in a process of its own: whole, killed before a step, or resumed from what was stored.

    python -m tests.unit.agent.resumed_run DIRECTORY [--kill-before STEP] [--resume-before STEP]

It stores its state before each step as DIRECTORY/STEP.json and prints its final state and its events as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelUnavailable
from agent.hooks.hook import Hook, InferenceRequest
from agent.loop import Host
from agent.messages import Message, ToolCall, ToolResult
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse
from agent.tools.tool import Capability, ToolContext
from tests.unit.agent.fakes import Events, says, tool

ODD = "\u0000 \u202e \ufeff \U0001f469\u200d\U0001f4bb e\u0301 \u2028 \\ud800 </tool>"


class Stores(Hook):
    """Outermost: what the other hooks do before the step is not in what is stored, so it is not done twice."""

    name = "stores"
    mandatory = True
    priority = 1_000_000

    def __init__(self, directory: Path, kill_before: int) -> None:
        self.directory, self.kill_before = directory, kill_before

    async def before_step(self, state: AgentState) -> AgentState:
        (self.directory / f"{state.steps + 1}.json").write_text(state.model_dump_json(), encoding="utf-8")
        if state.steps + 1 == self.kill_before:
            os.kill(os.getpid(), signal.SIGKILL)
        return state


class Remembers(Hook):
    """Writes at every kind of point, and once asks for another step after an answer."""

    name = "remembers"

    async def execution_start(self, state: AgentState) -> AgentState:
        return _counted(state, "starts")

    async def before_step(self, state: AgentState) -> AgentState:
        said = Message(role="user", content=f"[reminder before step {state.steps + 1}] {ODD}")
        return state.say(said) if state.steps % 2 else state

    async def after_tool_use(self, state: AgentState) -> AgentState:
        current = state.current.tool
        return state.with_metadata(f"remembers.{current.call.name}", json.dumps(current.call.arguments))

    async def should_continue(self, state: AgentState) -> AgentState:
        response = state.current.response
        if response is None or response.message.tool_calls or state.notes.get("remembers.forced"):
            return state
        return state.with_note("remembers.forced", {ODD: 0.1}).request_continuation(self.name, "again", "not yet")

    async def on_error(self, state: AgentState) -> AgentState:
        return _counted(state, "errors")

    async def execution_end(self, state: AgentState) -> AgentState:
        return _counted(state, "ends")


def _counted(state: AgentState, what: str) -> AgentState:
    before = state.metadata.get(what, 0)
    assert isinstance(before, int)
    return state.with_metadata(what, before + 1)


class Scripted:
    """Answers by what it is shown, as an endpoint does: it remembers nothing itself."""

    name = "scripted"

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        turn = sum(message.role == "assistant" for message in request.messages)
        last = request.messages[-1]
        if turn == 1 and not last.content.startswith("[reminder before step 4]"):
            raise ModelUnavailable("away")
        match turn:
            case 0:
                return says(ODD, _call("works", path=ODD, n=10**30), _call("fails"), _call("nowhere"))
            case 1:
                return says("", _call("works", path="caf\udce9"), _call("works", path=[1.5, None, {"": []}]))
            case 2:
                return says("not the end yet")
            case _:
                return says(f"the end {ODD}")


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="same", name=name, arguments=arguments, raw_arguments="as sent")


async def works(asked: Any, context: ToolContext) -> ToolResult:
    return ToolResult(repr(asked.model_dump()).encode(), note="a note")


async def fails(asked: Any, context: ToolContext) -> ToolResult:
    raise OSError("no such thing")


async def run(directory: Path, kill_before: int, resume_before: int) -> None:
    state = AgentState(run_id="r", thread="t", messages=(Message(role="user", content=f"do it {ODD}"),))
    if resume_before:
        state = AgentState.model_validate_json((directory / f"{resume_before}.json").read_text(encoding="utf-8"))
    ticks, ids = itertools.count(), itertools.count(state.tool_calls)
    events = Events()
    agent = Agent(
        model=Scripted(),
        capabilities=(
            flow(retries=0, on_model_error="continue"),
            limits(),
            Capability("tools", tools=(tool("works", works), tool("fails", fails))),
        ),
        hooks=(Remembers(), Stores(directory, kill_before)),
        system_prompt=f"be good {ODD}",
        host=Host(clock=lambda: float(next(ticks)), new_call_id=lambda: f"call_{next(ids)}"),
    )
    final = await agent.run(state, events)
    print(json.dumps({"state": json.loads(final.model_dump_json()), "events": [event.type for event in events]}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill-before", type=int, default=0)
    parser.add_argument("--resume-before", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(run(given.directory, given.kill_before, given.resume_before))
