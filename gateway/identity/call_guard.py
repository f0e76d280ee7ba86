"""Ends calls that answer once, and take their time, when their caller is nobody any more; stream_guard.py for streams.

One look in a while at all calls that are under way, so that a short one costs an entry and nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from gateway.errors import AirlockError, Unauthenticated
from gateway.identity.call_credentials import CallCredentials

# With what an authenticator remembers (key_authenticator.py) this makes less than the second that is promised.
_EVERY_S = 0.4
Authenticate = Callable[[Any], Awaitable[object]]


class CallGuard:
    """Looks at the calls of a process; `call` is one of them."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._calls: dict[GuardedCall, None] = {}
        self._looking: asyncio.Task[None] | None = None

    def call(self, authenticate: Authenticate, presented: CallCredentials) -> GuardedCall:
        """Return what is to be entered around a call, in its task; it raises Unauthenticated there."""
        return GuardedCall(self, authenticate, presented)

    def begun(self, call: GuardedCall) -> None:
        """Look at a call from now on, until it is `over`."""
        self._calls[call] = None
        # One that was left by an event loop that has ended looks at nothing any more.
        if self._looking is None or self._looking.done():
            # It serves all tenants, so it takes nothing from the caller that happened to be first.
            self._looking = asyncio.get_running_loop().create_task(
                self._look(), name="are the callers still known", context=contextvars.Context()
            )

    def over(self, call: GuardedCall) -> None:
        """Look at a call no more."""
        self._calls.pop(call, None)

    async def _look(self) -> None:
        seen: set[GuardedCall] = set()
        while self._calls:
            await asyncio.sleep(self._every_s)
            for call in [one for one in self._calls if one in seen]:
                error = await call.denial()
                if error is not None and call in self._calls:
                    self.over(call)
                    call.end(error)
            seen = set(self._calls)


class GuardedCall:
    """One call. Its credential is asked for again after one look at least."""

    __slots__ = ("_authenticate", "_error", "_guard", "_presented", "_task")

    def __init__(self, guard: CallGuard, authenticate: Authenticate, presented: CallCredentials) -> None:
        self._guard = guard
        self._authenticate = authenticate
        self._presented = presented
        self._error: AirlockError | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        """Begin to be looked at."""
        self._task = asyncio.current_task()
        self._guard.begun(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it; Unauthenticated in place of the cancellation, and of an answer that came in spite of it."""
        self._guard.over(self)
        if self._error is None or self._task is None:
            return
        # Where the peer went away too, it is gone, and nothing is left to tell it.
        left = self._task.uncancel()
        if left == 0 and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._error from None

    async def denial(self) -> Unauthenticated | None:
        """Ask for its credential again; return what it is told where that is none any more."""
        try:
            await self._authenticate(self._presented)
        except Unauthenticated as error:
            return error
        except AirlockError:
            pass  # the database does not answer: what was admitted goes on until somebody says otherwise
        return None

    def end(self, error: AirlockError) -> None:
        """Have the call end with an error."""
        if self._task is not None:
            self._error = error
            self._task.cancel()
