"""Ends calls and streams whose credential is revoked or expires while they are in progress.

One task per process checks all calls at an interval, so a short call usually costs one dictionary entry.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from gateway.errors import AirlockError, Unauthenticated
from gateway.identity.principal import CallCredentials

# Together with the authenticators' cache (authenticators.py) this is less than the promised second.
_EVERY_S = 0.4
Authenticate = Callable[[Any], Awaitable[object]]


class CallGuard:
    """Checks the calls of a process."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._calls: dict[GuardedCall, None] = {}
        self._watching: asyncio.Task[None] | None = None

    def call(self, authenticate: Authenticate, credentials: CallCredentials) -> GuardedCall:
        """Return a context manager to enter around a call, in its task; it raises Unauthenticated there."""
        return GuardedCall(self, authenticate, credentials)

    def add(self, call: GuardedCall) -> None:
        self._calls[call] = None
        if self._watching is None or self._watching.done():
            # The task serves all tenants, so it does not inherit the context of the first caller.
            self._watching = asyncio.get_running_loop().create_task(
                self._watch(), name="call guard", context=contextvars.Context()
            )

    def remove(self, call: GuardedCall) -> None:
        self._calls.pop(call, None)

    async def _watch(self) -> None:
        while self._calls:
            await asyncio.sleep(self._every_s)
            for call in list(self._calls):
                call.check()


@dataclass(eq=False, slots=True)
class GuardedCall:
    """One call or stream. Its credential is checked again within one interval, and then at each.

    A stream whose message is in grpc's hands fails when the message is sent; if the peer does not read it, at the next
    check.
    """

    guard: CallGuard
    authenticate: Authenticate
    credentials: CallCredentials
    _error: Unauthenticated | None = None
    _sending: bool = False
    _task: asyncio.Task[Any] | None = None
    _checking: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self.guard.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop checking; raise Unauthenticated in place of the cancellation, or of an answer that came despite it."""
        self.guard.remove(self)
        if self._checking is not None:
            self._checking.cancel()
        if self._error is None or self._task is None:
            return
        # If the peer disconnected too, the cancellation stands.
        cancelled = isinstance(error, asyncio.CancelledError)
        if self._task.uncancel() == 0 and (cancelled or error is None):
            raise self._error from None

    def send(self) -> None:
        self._sending = True

    def sent(self) -> None:
        """Record that the message was sent; raises Unauthenticated if the credential is no longer valid."""
        self._sending = False
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Check the credential in a task; cancel a stream that is still sending after a failed check."""
        if self._error is not None:
            self._cancel()
        elif self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check(), name="call guard: check")

    async def _check(self) -> None:
        try:
            await self.authenticate(self.credentials)
        except Unauthenticated as error:
            self._error = error
            if not self._sending:
                self._cancel()
        except AirlockError:
            pass  # the database does not answer: an admitted call goes on

    def _cancel(self) -> None:
        if self._task is not None:
            self.guard.remove(self)
            self._task.cancel()
