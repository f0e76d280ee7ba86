"""Ends calls and streams whose credential is revoked or expires while they are in progress.

One task per process checks all credentials at an interval, each once however many calls have it. So a short call
usually costs one dictionary entry, and a long queue costs no more checks than a short one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
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
        # By authenticator and credential.
        self._checking: dict[Hashable, asyncio.Task[None]] = {}

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
            calls_of: dict[Hashable, list[GuardedCall]] = defaultdict(list)
            for call in list(self._calls):
                if call.refused:
                    call.cancel()
                else:
                    calls_of[call.authenticate, call.credentials.secret].append(call)
            for credential, calls in calls_of.items():
                if credential not in self._checking:
                    check = self._check(credential, calls)
                    self._checking[credential] = asyncio.create_task(check, name="call guard: check")

    async def _check(self, credential: Hashable, calls: Sequence[GuardedCall]) -> None:
        """Check the credential of these calls; refuse those that are still in progress if it is no longer valid."""
        try:
            await calls[0].authenticate(calls[0].credentials)
        except Unauthenticated as error:
            for call in calls:
                if call in self._calls:
                    call.refuse(error)
        except AirlockError:
            pass  # the database does not answer: an admitted call goes on
        finally:
            del self._checking[credential]


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

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self.guard.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop checking; raise Unauthenticated in place of the cancellation, or of an answer that came despite it."""
        self.guard.remove(self)
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

    @property
    def refused(self) -> bool:
        return self._error is not None

    def refuse(self, error: Unauthenticated) -> None:
        """Cancel the call; a stream whose message is being sent only if it still is at the next check."""
        self._error = error
        if not self._sending:
            self.cancel()

    def cancel(self) -> None:
        if self._task is not None:
            self.guard.remove(self)
            self._task.cancel()
