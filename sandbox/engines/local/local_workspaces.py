"""LocalWorkspaces: the files of many threads, a directory for each in one root of this machine.

root/id                               what tells this root from others
root/workspaces/TENANT/THREAD         by digests, as owner_of() has them
root/tmp                              what is half made or half deleted; emptied by the next start
"""

from __future__ import annotations

import asyncio
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


class LocalWorkspaces:
    """The workspaces of one root, which one process at a time has."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._carried: set[Owner] = set()

    def prepare(self) -> str:
        """Make the root, this user's alone, with nothing half done in it; return its id. Raises SandboxUnavailable."""
        named, half_done = self._root / "id", self._root / "tmp"
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not named.exists():
                half = named.with_suffix(".half")
                half.write_text(f"memory-{secrets.token_hex(8)}")
                half.rename(named)
            remove_directory(half_done)
            half_done.mkdir(mode=0o700, exist_ok=True)
            return named.read_text().strip()
        except OSError as error:
            raise SandboxUnavailable(
                f"the in-memory engine cannot use {self._root}: {error.strerror or error}; it must be a directory that "
                "this user can write"
            ) from error

    def make(self, mine: Owner, sandbox_id: str) -> tuple[Path, Path]:
        """Return a thread's directory and a temporary one, made if they are not there."""
        made = self._path(mine), self._root / "tmp" / sandbox_id
        try:
            for directory in made:
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
        directory = self._path(mine)
        if not directory.exists():
            return None
        return await _in_thread(lambda going: take(read_directory(directory, going=going)))

    async def replace(self, mine: Owner, give: Callable[[], Contents]) -> None:
        """Put what `give` yields in the place of somebody's files; what goes wrong leaves the old ones as they were."""
        fresh = self._root / "tmp" / f"new-{secrets.token_hex(8)}"
        place = self._path(mine)

        def fill(going: Callable[[], bool]) -> None:
            fresh.mkdir(mode=0o700)
            fill_directory(fresh, give(), going=going)
            fresh.chmod(0o700)
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
