"""An agent: a model, its tools and its hooks; a run of it as a stream of events. The loop is agent.loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, cast

from pydantic import JsonValue

from agent.cancellation import Cancellation
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.capabilities.structured_output import structured_output
from agent.events import PIECES, Event, EventSink, discard, merged
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook
from agent.loop import Host, Parts, Run
from agent.models.model import Model
from agent.state import AgentState, Output
from agent.tools.tool import Capability, Function, Tool, as_tool
from agent.tools.toolbox import Toolbox


class Agent(Parts, Generic[Output]):
    """A model, its hooks and its tools. It stores nothing of a run, so any number of runs may share it.

    Agent(output=Report) is an Agent[Report], and its final state an AgentState[Report].
    """

    def __init__(  # noqa: PLR0913 - all keyword-only: most agents set two or three of them
        self,
        *,
        model: Model,
        tools: Sequence[Tool | Function] = (),
        capabilities: Sequence[Capability] = (),
        hooks: Sequence[Hook] = (),
        system_prompt: str = "",
        output: type[Output] | Mapping[str, JsonValue] | None = None,
        name: str = "default",
        host: Host | None = None,
    ) -> None:
        """Register the hooks of the capabilities in order, then `hooks`.

        A function among `tools` becomes a tool (agent.tools.tool.tool). The default limits and flow join unless
        `capabilities` contains one of that name. `output` is as in structured_output(output). Raises TypeError and
        ValueError for a hook or a tool that could never work.
        """
        host = host or Host()
        if tools and host.executor is not None:
            raise ValueError("the host's executor runs all tool calls: give it the tools, or leave the executor out")
        capabilities = (Capability("tools", tools=[*map(as_tool, tools)]), *capabilities)
        named = {capability.name for capability in capabilities}
        if output is not None:
            if "structured_output" in named:
                raise ValueError("give the output or the capability structured_output, not both")
            capabilities = (*capabilities, structured_output(cast(Any, output)))
        capabilities = (*capabilities, *(one for one in (flow(), limits()) if one.name not in named))
        registered = [*(hook for capability in capabilities for hook in capability.hooks), *hooks]
        super().__init__(
            model=model,
            hooks=HookEngine(registered, clock=host.clock),
            executor=host.executor or Toolbox(tool for capability in capabilities for tool in capability.tools),
            system_prompt=system_prompt,
            name=name,
            host=host,
        )

    async def run(self, state: AgentState, events: EventSink = discard) -> AgentState[Output]:
        """Run until something stops the run; return the state with `stop` set. The last event is run_finished.

        A run that waits for an approval returns the state with `pending` set instead, after the event run_suspended.
        Such a state, or one that a before_step hook stored, continues in any process.

        Raises ValueError for a state that is not JSON, and otherwise only asyncio.CancelledError. A cancelled run first
        ends its tool calls, runs the execution_end hooks, and emits run_finished with status cancelled.
        """
        return await Run(self, state, events).run()


class RunStream(Generic[Output]):
    """A run in a task of its own; one reader at a time iterates its events, each once.

    The run never waits for its reader: events are queued, and adjacent pieces of one text are joined. Past 1,000 queued
    events further pieces are dropped, because model_finished or tool_call_finished repeats their text.

    A reader that stops or fails does not stop the run: leaving `async with` waits for its end. `cancel()` ends it; so
    does cancelling the task inside the `async with`.
    """

    def __init__(self, agent: Agent[Output], state: AgentState) -> None:
        self._run = Run(agent, state, self._take)
        self._waiting: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("this run has been started; make another stream for another run")
        self._task = asyncio.create_task(self._work(), name=f"run {self._run.state.run_id}")
        self._task.add_done_callback(lambda _: self._changed.set())
        if self._cancelled:
            self._cancel()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.cancel()
        task = self._started()
        cancellation = await Cancellation.watch()
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                self._cancel()  # pass on each one: the run may wait again after the first
        cancellation.heed()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._started().done():
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def cancel(self) -> None:
        """End the run and its tool calls. Its last events and its state follow as usual."""
        if not self._cancelled:
            self._cancel()

    async def state(self) -> AgentState[Output]:
        """Wait for the end of the run and return its state; `stop` says what stopped it, including a cancellation."""
        await asyncio.shield(self._started())
        return self._run.state

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            # Not at once: only a task that has begun can be cancelled and still emit run_finished.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def _started(self) -> asyncio.Task[None]:
        if self._task is None:
            raise RuntimeError("the run has not been started: use `async with stream(agent, state) as run`")
        return self._task

    async def _work(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the tasks that wait for this one were not cancelled
            await self._run.run()

    def _take(self, event: Event) -> None:
        joined = merged(self._waiting[-1], event) if self._waiting else None
        if joined is not None:
            self._waiting[-1] = joined
        elif event.type not in PIECES or len(self._waiting) < 1000:
            self._waiting.append(event)
        self._changed.set()


def stream(agent: Agent[Output], state: AgentState) -> RunStream[Output]:
    """Return a run, started by `async with`."""
    return RunStream(agent, state)
