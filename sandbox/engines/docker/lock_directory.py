"""LockDirectory: the lock files of one gateway instance, by the owners of the sandboxes.

The names of the files say whose sandboxes live, so counting them asks no engine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.owner import Owner
from sandbox.thread_lock import Note, ThreadLock

# Longer than a sandbox takes to come up on a busy host, or to be removed.
_GATE_LIMIT_S = 60.0
_SUFFIX = ".lock"
_SERVING = "ground"  # as earlier releases call it


@dataclass(frozen=True)
class Look:
    """What a look at a lock shows: its note, since when it is idle, and whether the sandbox is being made or removed.

    `idle_s` is in seconds since 1970, None while it is in use.
    """

    note: Note
    idle_s: float | None
    at_work: bool


class LockDirectory:
    """The directory `locks` under the channels."""

    def __init__(self, channel_root: Path, instance: str) -> None:
        self._directory = channel_root / "locks"
        self._instance = instance

    async def enter(self, owner: Owner) -> ThreadLock:
        """Return an owner's lock, made if it is not there, behind its gate; SandboxUnavailable when that takes long."""
        while True:
            lock = ThreadLock.open(self._path(owner))
            await self.shut(lock)
            if not lock.gone:
                return lock
            lock.close()

    async def shut(self, lock: ThreadLock) -> None:
        """Shut the gate of a lock; SandboxUnavailable, and the lock closed, when that takes long."""
        try:
            await lock.gate(_GATE_LIMIT_S)
        except BaseException:
            lock.close()
            raise

    async def enter_existing(self, owner: Owner) -> ThreadLock | None:
        """Return an owner's lock as enter() does, or None where there is none."""
        if not self._path(owner).exists():
            return None
        lock = await self.enter(owner)
        if lock.read() is None:
            lock.retire()
            return None
        return lock

    def try_enter(self, owner: Owner) -> ThreadLock | None:
        """Return an owner's lock behind its gate, or None while another process makes or removes its sandbox."""
        lock = ThreadLock.open(self._path(owner))
        if lock.try_gate() and not lock.gone:
            return lock
        lock.close()
        return None

    def has(self, owner: Owner) -> bool:
        """Return whether an owner has a sandbox, or one is being made or removed."""
        return self._path(owner).exists()

    def owners(self) -> Sequence[Owner]:
        """Return whose sandboxes live, are being made or removed, in any process; the longest unused first."""
        return [owner for _, owner in sorted(self._files())]

    def looked_at(self, tenant: str) -> Sequence[Look]:
        """Return a look at the lock of each of a tenant's sandboxes; `tenant` is its digest."""
        found = []
        for used_s, owner in self._files():
            lock = ThreadLock.open_existing(self._path(owner)) if owner[0] == tenant else None
            if lock is not None:
                note = lock.read()
                if note is not None:
                    found.append(Look(note, None if lock.in_use() else used_s, at_work=lock.is_shut()))
                lock.close()
        return found

    def noted(self) -> Iterator[tuple[Owner, Note]]:
        """Yield the note of each sandbox that lives, is being made or removed, in any process."""
        for _, owner in self._files():
            lock = ThreadLock.open_existing(self._path(owner))
            note = lock.read() if lock is not None else None
            if lock is not None:
                lock.close()
            if note is not None:
                yield owner, note

    async def enter_serving(self) -> ThreadLock:
        """Return the serving lock, behind its gate: each process that serves the instance shares it."""
        while True:
            lock = self.serving()
            await self.shut(lock)
            if not lock.gone:
                return lock
            lock.close()

    def serving(self) -> ThreadLock:
        """Return the lock of enter_serving(), its gate as it is."""
        return ThreadLock.open(self._directory / f"{self._instance}-{_SERVING}{_SUFFIX}")

    def close(self) -> None:
        """Remove the directory if nothing is in it."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _path(self, owner: Owner) -> Path:
        return self._directory / f"{self._instance}-{owner[0]}-{owner[1]}{_SUFFIX}"

    def _files(self) -> Iterator[tuple[float, Owner]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                name = entry.name.removesuffix(_SUFFIX)
                tenant, _, thread = name.removeprefix(f"{self._instance}-").partition("-")
                if not name.startswith(f"{self._instance}-") or not thread:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    yield entry.stat().st_mtime, (tenant, thread)
