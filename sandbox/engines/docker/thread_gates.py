"""ThreadGates: a thread's lock behind its gate, with its note; the claims of dead processes are undone there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandbox.engines.docker.parts import Parts
from sandbox.owner import Owner
from sandbox.thread_lock import Note, ThreadLock
from sandbox.transition import CLAIM_LOST


@dataclass(frozen=True)
class Gate:
    """A lock behind its gate, and its note."""

    owner: Owner
    lock: ThreadLock
    note: Note


@dataclass(frozen=True)
class ThreadGates:
    """The gates of one instance's threads."""

    parts: Parts

    @asynccontextmanager
    async def existing(self, owner: Owner) -> AsyncIterator[Gate | None]:
        """Enter the gate of an owner's sandbox, which is there or is being made; None for none."""
        lock = await self.enter_existing(owner)
        note = lock.read() if lock is not None else None
        try:
            yield None if lock is None or note is None else Gate(owner, lock, note)
        finally:
            if lock is not None:
                lock.close()

    async def enter_existing(self, owner: Owner) -> ThreadLock | None:
        """Return the lock of an owner's sandbox behind its gate, as LockDirectory does; None where there is none."""
        lock = await self.parts.locks.enter_existing(owner)
        note = lock.read() if lock is not None else None
        if lock is not None and note is not None and note.unchecked:
            await self.give_up_claim(owner, note, lock)
            return None
        return lock

    async def give_up_claim(self, owner: Owner, note: Note, lock: ThreadLock) -> None:
        """Remove what a process left that died during a claim, behind the thread's gate, and the lock."""
        try:
            await self.unclaim(owner, note.sandbox)
            lock.retire()
        finally:
            lock.close()
        self.parts.record(owner, note, "removed", CLAIM_LOST)

    async def unclaim(self, owner: Owner, pooled: str) -> None:
        """Remove a pooled sandbox whose claim was not finished, behind the gate of the thread that it was meant for."""
        await self.parts.containers.remove(pooled)
        await self.parts.claims.give_back(owner, pooled)
