"""PoolLocks: the lock files of what the pools of one gateway instance have ready, each by the id of its pooled sandbox.

Apart from the locks of threads, whose names tell whose sandboxes live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import SandboxUnavailable
from sandbox.thread_lock import ThreadLock

_SUFFIX = ".lock"


class PoolLocks:
    """The directory `pool` beside the channels. Whoever has a pooled sandbox is behind the gate of its lock."""

    def __init__(self, channel_root: Path, instance: str) -> None:
        self._directory = channel_root / "pool"
        self._prefix = f"{instance}-"

    def enter(self, pooled: str) -> ThreadLock:
        """Return the lock of a pooled sandbox that is about to be made; SandboxUnavailable where that cannot be had."""
        try:
            lock = self.try_enter(pooled)
        except OSError as error:
            raise SandboxUnavailable(f"no lock file can be made in {self._directory}: {error.strerror}") from error
        if lock is None:
            raise SandboxUnavailable(f"sandbox {pooled} of the pool is there already")
        return lock

    def try_enter(self, pooled: str) -> ThreadLock | None:
        """Return the lock of a pooled sandbox; None where the process that made it lives."""
        lock = ThreadLock.open(self._directory / f"{self._prefix}{pooled}{_SUFFIX}")
        if lock.try_gate() and not lock.gone:
            return lock
        lock.close()
        return None

    def ids(self) -> Sequence[str]:
        """Return which pooled sandboxes have a lock file, whichever process made them."""
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self._directory.iterdir() if path.name.startswith(self._prefix)]
            return [name.removeprefix(self._prefix).removesuffix(_SUFFIX) for name in names]
        return []

    def close(self) -> None:
        """Remove the directory if nothing is in it."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()
