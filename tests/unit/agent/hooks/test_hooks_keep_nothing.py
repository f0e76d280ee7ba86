"""A hook of the library serves many runs at once and keeps nothing of them: what it must know later is in the state."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, JsonValue

from agent.agent import Agent
from agent.capabilities.attachments import attachments
from agent.capabilities.bash import bash
from agent.capabilities.filesystem import filesystem
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.capabilities.memory import memory
from agent.capabilities.metadata import metadata
from agent.capabilities.self_critique import self_critique
from agent.capabilities.skills import skills
from agent.capabilities.structured_output import structured_output
from agent.capabilities.summarization import summarization
from agent.capabilities.todos import todos
from agent.capabilities.tool_registry import tool_registry
from agent.capabilities.tracing import tracing
from agent.events import Event
from agent.hooks.hook import Hook, InferenceRequest
from agent.messages import ToolCall, ToolResult
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse
from agent.subagents.capability import Subagent, subagents
from agent.subagents.subagent import SubagentBudget
from agent.tools.tool import Capability
from tests.unit.agent.fakes import FakeExec, FakeFiles, FakeShell, ListRecorder, kinds_of, says, tool

_AT_ONCE = 64
_CALLS: dict[str, dict[str, JsonValue]] = {
    "execute": {"command": "true"},
    "write_file": {"path": "a", "content": "text"},
    "write_todos": {"todos": [{"id": "1", "title": "this", "status": "pending"}]},
    "metadata_write": {"key": "k", "value": 1},
    "finish_skill": {},
    "find_tools": {"query": "metadata"},
    "spawn_subagent": {"name": "helper", "task": "help"},
    "gate": {},
}


class Answer(BaseModel):
    n: int


class Works:
    """A model that calls every tool once and then answers; a summary, a critique and a subagent get text at once."""

    name = "works"

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        if not request.tools:
            return says('{"approved": true}')
        if any(message.role == "tool" for message in request.messages):
            return says('{"n": 1}')
        return says("", *(ToolCall(id=name, name=name, arguments=arguments) for name, arguments in _CALLS.items()))


def _kept(hook: Hook) -> dict[str, object]:
    """Return what a hook has, in a form that can be compared later."""
    return {
        name: repr(sorted(map(repr, value))) if isinstance(value, dict | list | set | frozenset | tuple) else id(value)
        for name, value in vars(hook).items()
    }


async def test_hooks_used_by_many_runs_at_once_have_no_attribute_that_changed() -> None:
    free, waiting = asyncio.Event(), asyncio.Semaphore(0)

    async def gate(*_: object) -> ToolResult:
        waiting.release()
        await free.wait()
        return ToolResult(b"open")

    files, model = FakeFiles({"/workspace/AGENTS.md": b"notes"}), Works()
    agent = Agent(
        model=model,
        capabilities=(
            filesystem(files),
            bash(FakeShell(FakeExec("exited", 0)), command_policy=lambda _: None),
            *(todos(), metadata(), memory(files, ("AGENTS.md",)), skills(files, ("skills",)), tracing(ListRecorder())),
            attachments(files),
            structured_output(Answer),
            self_critique(model),
            summarization(model, files, context_window_tokens=100),
            subagents({"helper": Subagent("helps", "You help.", tools=())}, model),
            tool_registry(always=tuple(_CALLS)),
            *(flow(), limits(cost_usd=1)),
            Capability("gate", tools=(tool("gate", gate),)),
        ),
    )
    # Each subagent has a budget of its own.
    every = {kind for kind in kinds_of(Hook) if kind.__module__.startswith("agent.")} - {SubagentBudget}
    assert {type(hook) for hook in agent.hooks.hooks} == every
    before = [_kept(hook) for hook in agent.hooks.hooks]
    finished: list[Event] = []
    runs = [
        asyncio.create_task(agent.run(AgentState.start("go", run_id=f"r{number}"), finished.append))
        for number in range(_AT_ONCE)
    ]
    async with asyncio.timeout(60):
        for _ in runs:
            await waiting.acquire()
        assert [_kept(hook) for hook in agent.hooks.hooks] == before
        free.set()
        ended = await asyncio.gather(*runs)
    assert {(one.answer, one.stop and one.stop.decision.name) for one in ended} == {('{"n": 1}', "ALLOW_STOP")}
    calls = {event.payload["name"]: event.payload for event in finished if event.type == "tool_call_finished"}
    assert {name: one["outcome"] for name, one in calls.items()} == {
        name: "exited" if name == "execute" else "completed" for name in _CALLS
    }
    assert [_kept(hook) for hook in agent.hooks.hooks] == before
