"""Runs one slow system call in a thread, so that it does not block the server's event loop.

Freeing a file of many gigabytes takes the kernel seconds, and so does a rename over a file on ext4, which first writes
the new bytes to disk. A child process could not do this with the server's descriptors. asyncio.to_thread would keep a
pool of threads, and their memory, for good.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeVar

    _Value = TypeVar("_Value")

# Smaller files are handled directly: a thread would cost more than it saves.
HERE_LIMIT_BYTES = 8 * 1024 * 1024


async def work_in_thread(work: Callable[[], _Value]) -> _Value:
    """Return what `work` returns or raise what it raises.

    Cancellation is deferred until `work` has ended, because it uses descriptors that the caller closes.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    outcome: list[_Value] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)
        loop.call_soon_threadsafe(done.set)

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return work()  # no thread left in the sandbox
    cancelled: asyncio.CancelledError | None = None
    while not done.is_set():
        try:
            await done.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if failure:
        raise failure[0]
    return outcome[0]
