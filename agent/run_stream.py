"""A run as a stream of events, for those who use the agent as a library.

    async with stream(agent, state) as run:
        async for event in run:
            print(event.type, event.payload)
        final = await run.state()

The run is a task of its own and nobody's reader holds it up: events wait for their reader. Neighbouring pieces of one
text that wait are joined; where 1,000 events wait, further pieces are dropped, for their whole text comes again in
model_finished or tool_call_finished. Other events are never dropped, and the order is the sink's.

Who stops reading, or fails, does not stop the run: leaving `async with` waits for its end. `cancel()` ends it; so does
a cancellation of the task that is inside the `async with`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import Generic, Self

from agent.agent import Agent
from agent.cancellation import Cancellation
from agent.coalescing import PIECES, merged
from agent.events import Event
from agent.loop import Run
from agent.state import AgentState, Output

_WAITING_LIMIT = 1000


class RunStream(Generic[Output]):
    """A run that goes on by itself; one reader at a time iterates its events, each event once."""

    def __init__(self, agent: Agent[Output], state: AgentState) -> None:
        self._run = Run(agent, state, self._take)
        self._waiting: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._cancelled = False
        self._begun = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("this run has been started; make another stream for another run")
        self._task = asyncio.create_task(self._work(), name=f"run {self._run.state.run_id}")
        self._task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.cancel()
        task = self._started()
        cancellation = await Cancellation.watch()
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                self._cancel()  # each one is passed on, for a run may wait for something after the first
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
        """End the run: its tool calls too. Its last events and its state come as they do otherwise."""
        if not self._cancelled:
            self._cancel()

    async def state(self) -> AgentState[Output]:
        """Wait for the end of the run and return its state; `stop` says what stopped it, also a cancellation."""
        await asyncio.shield(self._started())
        return self._run.state

    def _cancel(self) -> None:
        self._cancelled = True
        if self._begun:
            self._started().cancel()

    def _started(self) -> asyncio.Task[None]:
        if self._task is None:
            raise RuntimeError("the run has not been started: use `async with stream(agent, state) as run`")
        return self._task

    async def _work(self) -> None:
        self._begun = True
        if self._cancelled:
            # Only a task that has begun can be cancelled and still tell it: run_finished must come.
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        with contextlib.suppress(asyncio.CancelledError):  # who waits for this task was not cancelled
            await self._run.run()

    def _take(self, event: Event) -> None:
        both = merged(self._waiting[-1], event) if self._waiting else None
        if both is not None:
            self._waiting[-1] = both
        elif event.type not in PIECES or len(self._waiting) < _WAITING_LIMIT:
            self._waiting.append(event)
        self._changed.set()


def stream(agent: Agent[Output], state: AgentState) -> RunStream[Output]:
    """Return a run that starts with `async with`."""
    return RunStream(agent, state)
