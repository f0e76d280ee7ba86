"""What a step of the loop costs besides model and tool, and whether the thousandth costs as much as the first.

The agent has 12 hooks: flow (3), limits (7), a policy that lets everything pass (innermost), and one that overrides all
ten points and both rings and does nothing. The model answers at once, in this process, with one call to a tool that
does nothing. Three agents run in turn: one whose events are not kept, one whose events and messages go into a real
SQLite file, as the gateway keeps them, and one whose calls are journaled and audited there too. Lines of the gateway's
log are not written.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel
from rich.table import Table
from structlog.testing import capture_logs

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.events import Event, EventSink
from agent.hooks.engine import POINTS
from agent.hooks.hook import Hook, InferenceRequest, NextInference, NextToolUse
from agent.loop import Host
from agent.messages import Message, ToolCall, ToolResult, Usage
from agent.models.model import OnDelta
from agent.state import AgentState, ModelResponse, ToolExecution
from agent.tool_call import CallContext
from agent.tools.tool import Capability, Tool, ToolContext
from gateway.runs.checkpoints import Checkpoints, ThreadHistoryHook
from gateway.runs.run_log import RunLog
from gateway.storage.database import Database
from gateway.storage.run_writes import Claim, RunWrite
from gateway.storage.store import NewRun, Store
from gateway.tool_calls.journal import JournalHook

STEPS = 1000
_ROUNDS = 3
_HOOKS = 12
_ALONE = "loop alone"
_JOURNALED = "and the journal of calls"
_GOALS = {_ALONE: "< 1 ms, flat", _JOURNALED: "< 1.5 ms, flat"}


class _Arguments(BaseModel):
    n: int


class _Policy(Hook):
    name = "policy"
    innermost = True
    mandatory = True

    async def before_tool_use(self, state: AgentState) -> AgentState:
        return state.proceed(self.name, "all", "everything may pass")


class _Everywhere(Hook):
    """Overrides everything and does nothing."""

    name = "everywhere"

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        return await next_(request)

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        return await next_(tool)


async def _pass(self: Hook, state: AgentState) -> AgentState:
    del self
    return state


for _point in POINTS:
    setattr(_Everywhere, _point, _pass)


class _AnswersAtOnce:
    """A model whose answers are ready before the run begins."""

    name = "at-once"

    def __init__(self) -> None:
        self._answers = iter([self._answer(n) for n in range(STEPS + 1)])

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        del request, on_delta
        return next(self._answers)

    @staticmethod
    def _answer(n: int) -> ModelResponse:
        call = ToolCall(id=f"call_{n:04}", name="nothing", arguments={"n": n}, raw_arguments=json.dumps({"n": n}))
        message = Message(role="assistant", content="one more", tool_calls=(call,))
        return ModelResponse(
            message=message, finish_reason="tool_calls", usage=Usage(input_tokens=100, output_tokens=10)
        )


async def _nothing(arguments: _Arguments, context: ToolContext) -> ToolResult:
    del arguments, context
    return ToolResult(b"done")


def agent_with_twelve_hooks(*more: Hook, host: Host | None = None) -> Agent:
    """Return the agent whose steps are measured; `more` come on top of the twelve."""
    plenty = 10**9
    bounds = limits(
        steps=STEPS, output_tokens=plenty, execution_time_s=plenty, tool_calls=plenty, cost_usd=float(plenty)
    )
    agent = Agent(
        model=_AnswersAtOnce(),
        capabilities=(flow(), bounds, Capability("tools", tools=(Tool("nothing", "", _Arguments, _nothing),))),
        hooks=(_Everywhere(), _Policy(), *more),
        host=host,
    )
    if len(agent.hooks.hooks) != _HOOKS + len(more):
        raise RuntimeError(
            f"the benchmark says {_HOOKS} hooks, there are {len(agent.hooks.hooks)}: {agent.hooks.hooks}"
        )
    return agent


def new_state() -> AgentState:
    """Return the state of a run that has not begun."""
    return AgentState(run_id="bench", thread="bench", messages=(Message(role="user", content="go on"),))


async def step_times_ms(agent: Agent, state: AgentState, sink: EventSink) -> list[float]:
    """Run to the end; return how long each step took, from its start to the next one's."""
    stamps: list[float] = []

    def stamped(event: Event) -> None:
        if event.type in ("step_started", "run_finished"):
            stamps.append(time.perf_counter())
        sink(event)

    final = await agent.run(state, stamped)
    if final.steps != STEPS:
        raise RuntimeError(f"the run ended after {final.steps} steps: {final.stop}")
    return [(later - earlier) * 1000 for earlier, later in itertools.pairwise(stamps)]


class _CountingStore(Store):
    """Counts the JSON it is handed, by step."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.event_bytes: Counter[int] = Counter()
        self.message_bytes: Counter[int] = Counter()
        self._step = 0
        self.checkpoint_bytes: Counter[int] = Counter()

    async def write_run(self, claim: Claim, write: RunWrite) -> None:
        for event in write.events:
            if event.type == "step_started":
                self._step = json.loads(event.payload)["step"]
            self.event_bytes[self._step] += len(event.payload.encode())
        if write.step is not None:
            self.message_bytes[self._step] += sum(len(one.model_dump_json().encode()) for one in write.step.said)
            self.message_bytes[self._step] += sum(len(text.encode()) for text in write.step.changed.values())
        if write.checkpoint is not None:
            self.checkpoint_bytes[self._step] += len(write.checkpoint.encode())
        await super().write_run(claim, write)


async def _kept(directory: Path, *, journaled: bool) -> tuple[list[float], _CountingStore]:
    """Run with the gateway's log and history in a file of its own; `journaled` adds the journal of calls."""
    database = await Database.open(f"sqlite:///{directory / 'bench.db'}")
    try:
        store = _CountingStore(database)
        thread = await store.thread("bench", "bench")
        run = await store.add_run(thread, NewRun(agent="default", task="go on", policy_version=""))
        state = new_state().with_(run_id=run.id)
        log = RunLog(run.id, store)
        journal = JournalHook(store, thread, str)
        checkpoints = Checkpoints(log, journal, "")
        history = checkpoints.history = ThreadHistoryHook(checkpoints, thread, state.with_(messages=()))
        journal.host(log.claim, lambda: False)
        hooks = (history, journal) if journaled else (history,)
        agent = agent_with_twelve_hooks(*hooks, host=Host(recovery=checkpoints, context=CallContext(run_id=run.id)))
        with capture_logs():
            times = await step_times_ms(agent, state, log.emit)
        await log.close()
    finally:
        await database.close()
    return times, store


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints."""
    alone: list[list[float]] = []
    kept: dict[bool, list[list[float]]] = {False: [], True: []}
    counted: list[_CountingStore] = []
    for _ in range(_ROUNDS):
        alone.append(await step_times_ms(agent_with_twelve_hooks(), new_state(), lambda event: None))
        for journaled, taken in kept.items():
            with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
                times, store = await _kept(Path(directory), journaled=journaled)
            taken.append(times)
            counted.append(store)
    rows = {_ALONE: alone, "with log and history on SQLite": kept[False], _JOURNALED: kept[True]}
    return [_times(rows), _bytes(counted[-1])]


def _times(rows: Mapping[str, Sequence[Sequence[float]]]) -> Table:
    columns = (f"a step with {_HOOKS} hooks", "steps 1-100, p50 ms", "steps 901-1000, p50 ms", "ratio", "goal")
    table = Table(*columns, box=None, header_style="bold")
    for what, runs in rows.items():
        early = statistics.median(ms for run in runs for ms in run[:100])
        late = statistics.median(ms for run in runs for ms in run[900:])
        table.add_row(what, f"{early:.3f}", f"{late:.3f}", f"{late / early:.2f}", _GOALS.get(what, "flat"))
    return table


def _bytes(store: _CountingStore) -> Table:
    table = Table("bytes a step writes", "step 10", "step 990", "ratio", "goal", box=None, header_style="bold")
    for what, sizes in (
        ("events", store.event_bytes),
        ("messages and metadata", store.message_bytes),
        ("checkpoints", store.checkpoint_bytes),
    ):
        table.add_row(what, f"{sizes[10]:,}", f"{sizes[990]:,}", f"{sizes[990] / sizes[10]:.2f}", "flat")
    return table
