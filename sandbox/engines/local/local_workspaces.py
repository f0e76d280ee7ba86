"""LocalWorkspaces: the files of many threads, a directory for each in one root of this machine.

root/id                                     what tells this root from others; locked by the process that has the root
root/workspaces/TENANT/THREAD/workspace     by digests, as owner_of() has them
root/workspaces/TENANT/THREAD/tmp           of its sandbox, and gone with that
root/tmp                                    sockets, and what is half made or half deleted; emptied by the next start
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sandbox.engines.local.local_workspace import fill_directory, read_directory, remove_directory
from sandbox.engines.workspace_archive import Contents
from sandbox.errors import SandboxBusy, SandboxUnavailable
from sandbox.owner import Owner

_Value = TypeVar("_Value")

# For so long the daemons of a process that was killed may end what they run.
_LOCK_LIMIT_S = 10.0
_LOCK_PAUSE_S = 0.01


class LocalWorkspaces:
    """The workspaces of one root, which one process at a time has."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._carried: set[Owner] = set()
        self.lock = -1

    def id(self) -> str:
        """Make the root, this user's alone, where there is none; return its id. Raises SandboxUnavailable."""
        named = self._root / "id"
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not named.exists():
                half = named.with_suffix(".half")
                half.write_text(f"memory-{secrets.token_hex(8)}")
                half.rename(named)
            return named.read_text().strip()
        except OSError as error:
            raise self._unusable(error) from error

    async def prepare(self) -> None:
        """Lock the root and remove what is half done in it; SandboxUnavailable. Preparing again changes nothing."""
        if self.lock >= 0:
            return
        self.id()
        try:
            self.lock = await self._locked()
            for left in (self._root / "tmp", *self._root.glob("workspaces/*/*/tmp")):
                remove_directory(left)
            (self._root / "tmp").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> SandboxUnavailable:
        return SandboxUnavailable(
            f"the in-memory engine cannot use {self._root}: {error.strerror or error}; it must be a directory that "
            "this user can write"
        )

    async def _locked(self) -> int:
        """Lock the root for this process. Daemons of one that was killed have its lock until they have ended."""
        lock = os.open(self._root / "id", os.O_RDONLY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(_LOCK_LIMIT_S):
                while not _lock(lock):  # noqa: ASYNC110 - nothing tells of a lock that is free
                    await asyncio.sleep(_LOCK_PAUSE_S)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, TimeoutError):
                raise SandboxUnavailable(f"another process has {self._root}; end it, or use another root") from None
            raise
        return lock

    def close(self) -> None:
        """Leave the root to others. Closing again is no error."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def make(self, mine: Owner, sandbox_id: str) -> tuple[Path, Path]:
        """Return a thread's directory, with its files and no temporary ones, and one for the socket of its sandbox."""
        made = self._path(mine), self._root / "tmp" / sandbox_id
        try:
            for directory in (made[0] / "workspace", made[0] / "tmp", made[1]):
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SandboxUnavailable(f"no directory for a sandbox in {self._root}: {error.strerror}") from error
        return made[0].resolve(), made[1].resolve()

    def owners(self) -> list[Owner]:
        """Return whose files there are."""
        return sorted((path.parent.name, path.name) for path in self._root.glob("workspaces/*/*"))

    async def delete(self, mine: Owner) -> bool:
        """Delete a thread's files; out of the way at once, so that what is made meanwhile begins with none."""
        try:
            grave = self._bury(mine)
        except OSError as error:
            raise SandboxUnavailable(f"the files of a thread cannot be removed: {error.strerror}") from error
        if grave is not None:
            await asyncio.to_thread(remove_directory, grave)
        return grave is not None

    async def save(self, mine: Owner, take: Callable[[Contents], _Value]) -> _Value | None:
        """Return what `take`, in a thread, makes of somebody's files; None where there are none."""
        directory = self._path(mine) / "workspace"
        if not directory.exists():
            return None
        return await _in_thread(lambda going: take(read_directory(directory, going=going)))

    async def replace(self, mine: Owner, give: Callable[[], Contents]) -> None:
        """Put what `give` yields in the place of somebody's files; what goes wrong leaves the old ones as they were."""
        fresh = self._root / "tmp" / f"new-{secrets.token_hex(8)}"
        place = self._path(mine)

        def fill(going: Callable[[], bool]) -> None:
            (fresh / "workspace").mkdir(mode=0o700, parents=True)
            fill_directory(fresh / "workspace", give(), going=going)
            for directory in (fresh, fresh / "workspace"):
                directory.chmod(0o700)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

        done = [fresh]
        try:
            await _in_thread(fill)
            # Nobody can come between, nor give up: the old files or the new ones, never none.
            grave = self._bury(mine)
            try:
                fresh.rename(place)
            except OSError:
                if grave is not None:
                    grave.rename(place)
                raise
            if grave is not None:
                done.append(grave)
        except OSError as error:
            raise SandboxUnavailable(f"the files of this thread could not be written: {error.strerror}") from error
        finally:
            for directory in done:
                await asyncio.to_thread(remove_directory, directory)

    @contextmanager
    def alone(self, mine: Owner) -> Iterator[None]:
        """Be the only one who saves or replaces somebody's files; SandboxBusy when another does."""
        if mine in self._carried:
            raise SandboxBusy("the files of this thread are being saved or replaced; wait until that is over")
        self._carried.add(mine)
        try:
            yield
        finally:
            self._carried.discard(mine)

    def _bury(self, mine: Owner) -> Path | None:
        """Move a thread's files out of the way, and return where to; None where there are none."""
        grave = self._root / "tmp" / f"deleted-{secrets.token_hex(8)}"
        try:
            self._path(mine).rename(grave)
        except FileNotFoundError:
            return None
        return grave

    def _path(self, mine: Owner) -> Path:
        return self._root / "workspaces" / mine[0] / mine[1]


def _lock(descriptor: int) -> bool:
    """Lock a file unless somebody else has locked it; return whether it is locked now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _in_thread(work: Callable[[Callable[[], bool]], _Value]) -> _Value:
    """Return what work does in a thread; a caller that gives up waits until the thread has, too."""
    stopped = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, lambda: not stopped.is_set()))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody else asks for it
        raise
