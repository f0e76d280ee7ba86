"""Locks on one tenant's snapshots, which all processes on its database share.

    FileLocks        on files beside the snapshots; the kernel releases them when a process dies
    DatabaseLocks    rows of the database, for gateways without a shared disk; they expire unless they are renewed

A lock in the database can be lost, if its process is stopped or cut off for long. What then must not happen are two
things. Nothing is removed that another process has begun to rely on: a removal needs a lock that is valid for longer
than the request can take. And no row is written of a snapshot whose files another process has swept: the transaction
that writes it looks for the lock.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import structlog

from agent.cancellation import to_the_end
from gateway.errors import AirlockError, InProgress, Unavailable
from gateway.snapshots.directory_objects import disk_errors
from gateway.storage.lock_store import LockStore
from gateway.support.background import in_background
from gateway.support.clock import make_id

LOCK, FORKING = "lock", "forking"
# How long to wait for the lock; the error says when to retry.
LOCK_TIMEOUT_S = 5.0
_AGAIN_S = 2.0
_RETRY_FILE_S = 0.05
# Each try is a transaction.
_RETRY_ROW_S = 0.25
_US_PER_S = 1_000_000
log = structlog.get_logger(__name__)


class Locks(Protocol):
    """The locks on one tenant's snapshots."""

    held: str
    """The exclusive lock as the database knows it; "" for none, or one that cannot be lost."""
    inherited_s: float
    """How long to wait for the lock of a process that was killed."""

    def check(self, margin_s: float) -> None:
        """Raise Unavailable unless the exclusive lock is valid for at least so long. For threads."""
        ...

    def locked(
        self, name: str, *, exclusive: bool = False, timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Have the lock of a name until the block ends; InProgress while others have it."""
        ...


def _in_progress() -> InProgress:
    return InProgress("another snapshot of this tenant is being taken: try again when it is complete", _AGAIN_S)


class FileLocks:
    """Locks on files of a directory, which is made for them."""

    held = ""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.inherited_s = LOCK_TIMEOUT_S

    def check(self, margin_s: float) -> None:
        del margin_s  # the kernel takes it from no process that lives

    @asynccontextmanager
    async def locked(
        self, name: str, *, exclusive: bool = False, timeout_s: float | None = None
    ) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        while (descriptor := self._try_lock(kind, name)) is None:
            if loop.time() > deadline_s:
                raise _in_progress()
            await asyncio.sleep(_RETRY_FILE_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, kind: int, name: str) -> int | None:
        """Return the locked file; None if another process has it, or has just removed it."""
        descriptor = self._opened(name)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        os.close(descriptor)
        return None

    @disk_errors()
    def _opened(self, name: str) -> int:
        while True:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed with its tenant just now


class DatabaseLocks:
    """Rows of the database in a scope; each is renewed while it is held, and expires `lease_s` after that."""

    def __init__(self, store: LockStore, scope: str, *, lease_s: float = 60.0) -> None:
        self._store, self._scope = store, scope
        self.lease_s, self._lease_us = lease_s, round(lease_s * _US_PER_S)
        self.inherited_s = lease_s + LOCK_TIMEOUT_S
        self.held = ""
        self._renewed_s = 0.0

    def check(self, margin_s: float) -> None:
        if not self.held or time.monotonic() + margin_s > self._renewed_s + self.lease_s:
            raise Unavailable(
                "the lock on the tenant's snapshots was not renewed in time: the database did not answer, or this "
                "process was stopped; try again"
            )

    @asynccontextmanager
    async def locked(
        self, name: str, *, exclusive: bool = False, timeout_s: float | None = None
    ) -> AsyncIterator[None]:
        deadline_s = time.monotonic() + (LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
        id_ = make_id("lock")
        try:
            asked_s = time.monotonic()
            while not await self._store.take(id_, f"{self._scope}/{name}", self._lease_us, exclusive=exclusive):
                if time.monotonic() > deadline_s:
                    raise _in_progress()
                await asyncio.sleep(_RETRY_ROW_S)
                asked_s = time.monotonic()
            if exclusive and name == LOCK:
                self.held, self._renewed_s = id_, asked_s
            async with in_background(self._keep(id_), "lock of snapshots"):
                yield
        finally:
            if self.held == id_:
                self.held = ""
            # Also if the caller went away while it was being taken.
            await to_the_end(self._release(id_))

    async def _keep(self, id_: str) -> None:
        while True:
            await asyncio.sleep(self.lease_s / 6)
            asked_s = time.monotonic()
            try:
                if not await self._store.renew(id_, self._lease_us):
                    log.error("a lock on snapshots was lost: it was not renewed in time")
                    return
            except AirlockError as error:
                log.warning("a lock on snapshots is not renewed", error=str(error))
                continue
            if self.held == id_:
                self._renewed_s = asked_s

    async def _release(self, id_: str) -> None:
        with contextlib.suppress(AirlockError):  # it expires
            await self._store.release(id_)
