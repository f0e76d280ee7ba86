"""One system call that may take long, in a thread of its own, so that the server's loop goes on meanwhile.

Letting go of a file of many gigabytes takes the kernel seconds, and so does a rename over a file on ext4, which begins
to write the new bytes to the disk first. A child process could not do it with this process' descriptors; a thread
can. asyncio.to_thread would keep a pool of them, and their memory, for good.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeVar

    _Value = TypeVar("_Value")

# Less is done at once: a thread costs more than what it would spare.
HERE_LIMIT_BYTES = 8 * 1024 * 1024


async def work_in_thread(work: Callable[[], _Value]) -> _Value:
    """Return what `work` returns or raise what it raises.

    A cancelled caller waits for the end as well, and is cancelled then: `work` uses descriptors that he will close.
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
        return work()  # the sandbox has no thread left; slow is better than not at all
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
