"""An event loop in a thread of its own, and callers that wait for what runs in it: other threads and other loops.

A thread waits interruptibly: Ctrl-C cancels what it waits for, and is raised once that has ended. Functions that the
caller passed, such as `on_output`, run in the caller's thread while it waits.
"""

import asyncio
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Generic, TypeVar

from airlock.connection import CLOSED, FORKED
from airlock.errors import AirlockError, ClientClosed, InvalidArgument, WrongEventLoop, WrongProcess

T = TypeVar("T")
# Cancelling a tool call tells the gateway, which takes 2 s at most.
_CANCELLED_WITHIN_S = 5.0
_STOPPED_WITHIN_S = 5.0
_CLOSED_MEANWHILE = "this client was closed while the call was under way"


class BackgroundLoop:
    """An event loop in a daemon thread, which starts when the loop is first used."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._pid: int | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result. Raises ClientClosed, WrongProcess, WrongEventLoop."""
        return Waiting[T](self).wait(work)

    async def awaited(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and await it in another one; cancelling the await cancels it. Raises as run."""
        try:
            future = self._using(lambda loop: asyncio.run_coroutine_threadsafe(work, loop))
        except BaseException:
            work.close()
            raise
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise ClientClosed(_CLOSED_MEANWHILE) from None

    def submit(self, work: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """Call a function in the loop's thread, without waiting; those submitted earlier come first."""
        self._using(lambda loop: loop.call_soon_threadsafe(work, loop))

    def _using(self, use: Callable[[asyncio.AbstractEventLoop], T]) -> T:
        """Return what a function does with the loop, which is started if this is its first use."""
        self.check_process()
        self._pid = os.getpid()  # before the lock, which may be locked for ever in a child
        if self.is_current():
            raise WrongEventLoop("this client waits for its own thread: call it from another one, or use Client there")
        with self._starting:
            if self._closed:
                raise ClientClosed(CLOSED)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="airlock-client", daemon=True)
                self._thread.start()
            return use(self._loop)

    def check_process(self) -> None:
        """Raise WrongProcess in a child of the process whose thread this is."""
        if self._pid not in (None, os.getpid()):
            raise WrongProcess(FORKED)

    def is_current(self) -> bool:
        """Return whether the caller runs in the loop's thread."""
        return threading.current_thread() is self._thread

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine, end everything else in the loop, and stop its thread. Closing again does nothing."""
        if self._pid not in (None, os.getpid()):
            return  # the thread is the parent's
        with self._starting:
            first, self._closed = not self._closed, True
        if self._loop is None or self._thread is None:
            return
        if first:
            loop = self._loop
            loop.call_soon_threadsafe(lambda: loop.create_task(_end(last)))
        if not self.is_current():
            self._thread.join(_STOPPED_WITHIN_S)


_OF_PROCESS: dict[int, BackgroundLoop] = {}


def shared_loop() -> BackgroundLoop:
    """Return the loop of this process for clients that belong to no caller's loop; it runs as long as the process.

    A client that is used in it is used in it only. A forked child has a loop of its own.
    """
    return _OF_PROCESS.setdefault(os.getpid(), BackgroundLoop())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the last coroutine, wait for the tasks that it ended, cancel others, and stop the loop."""
    loop = asyncio.get_running_loop()
    try:
        with suppress(AirlockError):
            await last()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=1)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await loop.shutdown_asyncgens()
    finally:
        loop.stop()


class Waiting(Generic[T]):
    """A caller that waits for a coroutine in the loop, and meanwhile runs what that asks of the caller's thread."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self.background = loop
        # Calls of the caller's functions; None when the task has ended.
        self._asked: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._task: asyncio.Task[T] | None = None

    def here(self, function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, None]]:
        """Return a coroutine function that calls a function in the thread that waits."""

        async def ask(*arguments: Any) -> None:
            answer: Future[None] = Future()
            self._asked.put((function, arguments, answer))
            await asyncio.wrap_future(answer)

        return ask

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine; whatever interrupts the caller cancels it."""
        context = contextvars.copy_context()

        def begin(loop: asyncio.AbstractEventLoop) -> None:
            self._task = loop.create_task(work, context=context)
            self._task.add_done_callback(lambda _: self._asked.put(None))

        try:
            self.background.submit(begin)
        except BaseException:
            work.close()
            raise
        try:
            while (asked := self._asked.get()) is not None:
                _answer(*asked)
                self.background.check_process()  # which the function may have forked
        except BaseException:
            self._cancel()
            raise
        if self._task is None or self._task.cancelled():
            raise ClientClosed(_CLOSED_MEANWHILE)
        return self._task.result()

    def _cancel(self) -> None:
        """Cancel the task and wait for its end, so that what it started has ended too; not for ever."""
        with suppress(AirlockError):
            self.background.submit(lambda _: None if self._task is None else _cancel(self._task))
            with suppress(queue.Empty):
                while (asked := self._asked.get(timeout=_CANCELLED_WITHIN_S)) is not None:
                    asked[2].cancel()


def _cancel(task: "asyncio.Task[Any]") -> None:
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # else its outcome is reported as lost
    task.cancel()


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], answer: "Future[None]") -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidArgument("a plain function is expected where the client blocks, not a coroutine function")
    except Exception as error:
        answer.set_exception(error)
    else:
        answer.set_result(None)


def iterated(waiting: Waiting[Any], items: Any, owner: object) -> Generator[Any, None, None]:
    """Yield the items of an asynchronous generator; closing this one early ends it. `owner` lives as long."""
    background = waiting.background

    async def following() -> Any:
        return await anext(items, _END)

    try:
        while (item := waiting.wait(following())) is not _END:
            yield item
    finally:
        # The garbage collector may close this in any thread.
        with suppress(ClientClosed, WrongProcess):
            if background.is_current():
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: loop.create_task(items.aclose()))
            else:
                background.run(items.aclose())
        del owner


_END: Any = object()


@contextmanager
def entered(
    background: BackgroundLoop, manager: AbstractAsyncContextManager[Any], made: Callable[[Any], T]
) -> Iterator[T]:
    """Enter an asynchronous context manager for the block, which gets what `made` makes of its value."""

    async def enter() -> Any:
        return await manager.__aenter__()

    async def leave(error: BaseException | None) -> bool | None:
        return await manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)

    value = background.run(enter())
    try:
        yield made(value)
    except BaseException as error:
        if not background.run(leave(error)):
            raise
    else:
        background.run(leave(None))
