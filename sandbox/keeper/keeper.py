"""Keeper: who lends each thread its one sandbox. SandboxKeeper does it; concerns are keepers around a keeper."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandbox.sandbox import ListedSandbox, Sandbox, SandboxSpec
from sandbox.transition import State


class Keeper(Protocol):
    """Lends sandboxes. Raises SandboxError subclasses."""

    @property
    def live(self) -> int:
        """How many sandboxes this process has or makes."""
        ...

    def states(self) -> Mapping[State, int]:
        """Return how many sandboxes this process is about to have, and has, and how many of all are stopped."""
        ...

    def acquire(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Lend the sandbox of the spec's tenant and thread; raises SandboxError when there can be none.

        Calls of one thread share it. A sandbox made for another spec is replaced once nobody uses it.
        """
        ...

    def acquire_existing(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox | None]:
        """Lend the sandbox of the spec's tenant and thread, or None where none lives: whoever only looks makes none.

        One made for another spec is lent as it is, and stays.
        """
        ...

    def at_hand(self, tenant: str, thread: str) -> Sandbox | None:
        """Return a thread's sandbox as far as this process has it, for a look that is no use and keeps it from nothing.

        It may be removed in the midst of the look, which is DaemonLost then.
        """
        ...

    def users(self, tenant: str, thread: str) -> int:
        """Return how many calls of this process are under way in a thread's sandbox."""
        ...

    async def stop(self, tenant: str, thread: str) -> ListedSandbox | None:
        """Stop a thread's sandbox as Engine.stop() does; where none is to stay stopped it is removed."""
        ...

    def ends_s(self, one: ListedSandbox, spec: SandboxSpec) -> float | None:
        """Return when an idle sandbox is stopped, or a stopped one removed, if nobody asks for it.

        In seconds since 1970, and a moment early: whoever looks after them looks now and then. None for never.
        """
        ...
