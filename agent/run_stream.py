"""A run as a stream of events, in a task of its own.

The run never waits for its reader: events are queued, and adjacent pieces of one text are joined. Past 1,000 queued
events further pieces are dropped, because model_finished or tool_call_finished repeats their text.

A reader that stops or fails does not stop the run: leaving `async with` waits for its end. `cancel()` ends it; so does
cancelling the task inside the `async with`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Generic, Self

from agent.agent import Agent
from agent.cancellation import Cancellation
from agent.coalescing import PIECES, merged
from agent.events import Event
from agent.loop import Run
from agent.state import AgentState, Output

_WAITING_LIMIT = 1000


class RunStream(Generic[Output]):
    """A run in a task of its own; one reader at a time iterates its events, each once."""

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
        if self._begun:
            self._started().cancel()

    def _started(self) -> asyncio.Task[None]:
        if self._task is None:
            raise RuntimeError("the run has not been started: use `async with stream(agent, state) as run`")
        return self._task

    async def _work(self) -> None:
        self._begun = True
        if self._cancelled:
            # Only a task that has started can be cancelled and still emit run_finished.
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        with contextlib.suppress(asyncio.CancelledError):  # the tasks that wait for this one were not cancelled
            await self._run.run()

    def _take(self, event: Event) -> None:
        joined = merged(self._waiting[-1], event) if self._waiting else None
        if joined is not None:
            self._waiting[-1] = joined
        elif event.type not in PIECES or len(self._waiting) < _WAITING_LIMIT:
            self._waiting.append(event)
        self._changed.set()


def stream(agent: Agent[Output], state: AgentState) -> RunStream[Output]:
    """Return a run, started by `async with`."""
    return RunStream(agent, state)
