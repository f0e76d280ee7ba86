"""Ends a stream whose caller is nobody any more: since it began the key was revoked, or the credential expired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from gateway.errors import AirlockError, Unauthenticated

# With what an authenticator remembers (key_authenticator.py) this makes less than the second that is promised.
_EVERY_S = 0.4


class StreamGuard:
    """Asks again and again, around the stream in whose task it is entered; raises Unauthenticated there.

    A stream that sends is told afterwards; one whose peer does not read what is sent is cut off at the next look.
    """

    def __init__(self, authenticate: Callable[[], Awaitable[object]], every_s: float = _EVERY_S) -> None:
        self._authenticate = authenticate
        self._every_s = every_s
        self._error: AirlockError | None = None
        self._sending = False
        self._looking: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        """Begin to look; a stream that is over before the first look costs a timer and no task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is served in a task")
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop looking; Unauthenticated in place of the cancellation that ended the stream."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        # Where the peer went away too, it is gone, and nothing is left to tell it.
        if self._error is not None and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise self._error from None

    def send(self) -> None:
        """Note that the stream waits for its peer now, in grpc's hands."""
        self._sending = True

    def sent(self) -> None:
        """Note that the stream goes on; Unauthenticated when its caller is nobody any more."""
        self._sending = False
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        if self._error is not None:  # it still sends
            self._task.cancel()
            return
        self._looking = asyncio.get_running_loop().create_task(self._ask(), name="is the caller still known")

    async def _ask(self) -> None:
        try:
            await self._authenticate()
        except Unauthenticated as error:
            self._error = error
            if not self._sending:
                self._task.cancel()
                return
        except AirlockError:
            pass  # the database does not answer: what was admitted goes on until somebody says otherwise
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)
