"""The evaluation as a task of inspect-ai: a sample is an attempt, its solver a run of the gateway's own agent.

inspect asks no model: the gateway does, as in production. inspect's log has each attempt's messages, usage and score.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageTool, ModelOutput, ModelUsage
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall

from airlock import Client
from examples.evaluation.evaluation_task import EvaluationTask, Finished
from examples.evaluation.run_record import RunRecord
from examples.evaluation.workspace import Workspace


@dataclass(frozen=True)
class Place:
    """The gateway, and a key of each tenant. No parameter of a solver or scorer, because inspect logs those."""

    address: str
    keys: Mapping[str, str]


@dataclass(frozen=True)
class Attempt:
    """A task, and the agent of the gateway that attempts it; "" is the default agent."""

    task: EvaluationTask
    agent: str = ""

    @property
    def name(self) -> str:
        return self.agent or self.task.name


def inspect_task(
    place: Place, attempts: Sequence[Attempt], on_score: Callable[[str, str], None] = lambda _name, _problem: None
) -> Task:
    """Return the task; `on_score` gets the name of each attempt that has ended, and what is wrong with its result."""
    by_name = {attempt.name: attempt for attempt in attempts}
    finished: dict[str, Finished] = {}

    @solver(name="airlock_agent")
    def airlock_agent() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 - inspect's model is not asked
            attempt = by_name[str(state.sample_id)]
            done = finished[state.uuid] = await attempted(place, attempt)
            state.messages += messages_of(done.run)
            state.output = _output(attempt.name, done.run)
            return state

        return solve

    @scorer(name="result", metrics=[accuracy()])
    def result() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 - the task's own check knows it
            attempt, done = by_name[str(state.sample_id)], finished.pop(state.uuid)
            problem = done.run.unfinished() or attempt.task.check(done)
            on_score(attempt.name, problem)
            return Score(
                value=INCORRECT if problem else CORRECT,
                answer=done.run.answer,
                explanation=problem,
                metadata={"steps": done.run.steps, "seconds": done.run.seconds, "usage": dict(done.run.usage)},
            )

        return score

    samples = [Sample(id=attempt.name, input=attempt.task.text) for attempt in attempts]
    return Task(dataset=samples, solver=airlock_agent(), scorer=result(), name="airlock")


async def attempted(place: Place, attempt: Attempt) -> Finished:
    """Run an attempt in a thread of its own and delete it; after an error it is gone with its gateway.

    Raises AirlockError, TooMuchLeft.
    """
    task, thread = attempt.task, f"evaluation/{attempt.name}/{uuid.uuid4().hex}"
    before = task.files()
    async with Client(place.address, place.keys[task.tenant]) as client:
        workspace = Workspace(client, thread)
        await workspace.fill(before)
        run = await _run(client, task.text, thread, attempt.agent)
        # First the files: the probe imports what the agent wrote, which may do anything.
        after = await workspace.files()
        probed = await workspace.python(task.probe) if task.probe else ""
        await client.delete_thread(thread)
    return Finished(run, before, after, probed)


async def _run(client: Client, text: str, thread: str, agent: str) -> RunRecord:
    run, start = RunRecord(), time.monotonic()
    async for event in client.run(text, thread=thread, agent=agent):
        run.feed(event.type, event.payload)
    run.seconds = round(time.monotonic() - start, 3)
    return run


def messages_of(run: RunRecord) -> list[ChatMessage]:
    """Return the run's messages, for inspect's log."""
    messages: list[ChatMessage] = []
    for answered in run.answers:
        calls = [run.calls[id_] for id_ in answered.call_ids if id_ in run.calls]
        asked = [ToolCall(id=call.id, function=call.name, arguments=dict(call.arguments)) for call in calls]
        messages.append(ChatMessageAssistant(content=answered.text, tool_calls=asked or None))
        messages += [ChatMessageTool(content=call.shown, tool_call_id=call.id, function=call.name) for call in calls]
    return messages


def _output(name: str, run: RunRecord) -> ModelOutput:
    output = ModelOutput.from_content(name, run.answer)
    used: Mapping[str, Any] = run.usage
    input_tokens, output_tokens = int(used.get("input_tokens") or 0), int(used.get("output_tokens") or 0)
    output.usage = ModelUsage(
        input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens
    )
    return output
