"""The files of one gateway instance: locks, of owners, pooled sandboxes and carriers, and notes of stopped sandboxes.

The names of the files say whose the sandboxes are, so counting them asks no engine.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sandbox.engines.engine import surplus
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.sandbox import Owner
from sandbox.thread_lock import Note, ThreadLock

log = logging.getLogger(__name__)

_SERVING = "ground"  # the name on disk


@dataclass
class NamedFiles:
    """The files `<prefix><name><suffix>` of a directory, which is removed with the last of them.

    A name may be an owner's, of both digests.
    """

    directory: Path
    prefix: str
    suffix: str

    def path(self, name: Owner | str) -> Path:
        return self.directory / f"{self.prefix}{name if isinstance(name, str) else '-'.join(name)}{self.suffix}"

    def has(self, name: Owner | str) -> bool:
        return self.path(name).exists()

    def found(self) -> Iterator[tuple[float, str]]:
        """Yield the time of last change, in seconds since 1970, and the name of each."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.startswith(self.prefix) and entry.name.endswith(self.suffix):
                    with contextlib.suppress(FileNotFoundError):
                        name = entry.name.removeprefix(self.prefix).removesuffix(self.suffix)
                        yield entry.stat().st_mtime, name

    def found_owners(self, tenant: str | None = None) -> list[tuple[float, Owner]]:
        """Return what found() yields, for names that owners have, of all or of one tenant, the earliest first."""
        names = ((changed_s, name.partition("-")) for changed_s, name in self.found())
        return sorted(
            (changed_s, (of, thread)) for changed_s, (of, _, thread) in names if thread and tenant in (None, of)
        )

    def owners(self, tenant: str | None = None) -> Sequence[Owner]:
        """Return the owners that have a file, or those of one tenant, a digest; that of the earliest change first."""
        return [owner for _, owner in self.found_owners(tenant)]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.directory.rmdir()


class LockFiles(NamedFiles):
    """The lock files of a directory."""

    def __init__(self, directory: Path, prefix: str) -> None:
        super().__init__(directory, prefix, ".lock")

    def try_enter(self, name: Owner | str, *, make: bool = True) -> ThreadLock | None:
        """Return a lock behind its gate, or None while the gate is shut. Without `make` only a lock that is there."""
        opened = ThreadLock.open if make else ThreadLock.open_existing
        while (lock := opened(self.path(name))) is not None and lock.try_gate():
            if not lock.gone:
                return lock
            lock.close()
        if lock is not None:
            lock.close()
        return None

    async def enter(self, name: Owner | str) -> ThreadLock:
        """Return a lock behind its gate, made if it is not there; SandboxUnavailable when that takes long."""
        while True:
            lock = ThreadLock.open(self.path(name))
            await shut(lock)
            if not lock.gone:
                return lock
            lock.close()


class PoolLocks(LockFiles):
    """The locks of pooled sandboxes, apart from those of threads. The process that has one is behind its gate."""

    def __init__(self, channel_root: Path, instance: str) -> None:
        super().__init__(channel_root / "pool", f"{instance}-")

    def enter_new(self, pooled: str) -> ThreadLock:
        """Return the lock of a pooled sandbox that is about to be made; SandboxUnavailable where that fails."""
        try:
            lock = self.try_enter(pooled)
        except OSError as error:
            raise SandboxUnavailable(f"no lock file can be made in {self.directory}: {error.strerror}") from error
        if lock is None:
            raise SandboxUnavailable(f"sandbox {pooled} of the pool already exists")
        return lock

    def ids(self) -> set[str]:
        return {pooled for _, pooled in self.found()}


@dataclass(frozen=True)
class Look:
    """What a look at a lock shows: its note, since when it is idle, and whether the sandbox is being made or removed.

    `idle_s` is in seconds since 1970, None while it is in use.
    """

    owner: Owner
    note: Note
    idle_s: float | None
    at_work: bool


class LockDirectory(LockFiles):
    """The locks of threads, by owner, and the serving lock.

    An owner that has a lock has a sandbox, or one is being made or removed, in any process.
    """

    def __init__(self, channel_root: Path, instance: str) -> None:
        super().__init__(channel_root / "locks", f"{instance}-")

    @contextlib.asynccontextmanager
    async def entered(self, owner: Owner) -> AsyncIterator[ThreadLock]:
        """Be behind the gate of an owner's lock, which is let_go() at the end."""
        lock = await self.enter(owner)
        try:
            yield lock
        finally:
            let_go(lock)

    async def enter_existing(self, owner: Owner) -> tuple[ThreadLock, Note] | None:
        """Return an owner's lock as enter() does, with its note; None where there is none."""
        if not self.has(owner):
            return None
        lock = await self.enter(owner)
        note = lock.read()
        if note is None:
            lock.retire()
            return None
        return lock, note

    def looked_at(self, tenant: str | None = None) -> Sequence[Look]:
        """Return a look at the lock of each sandbox, or of those of one tenant, a digest; no gate is needed."""
        found = []
        for used_s, owner in self.found_owners(tenant):
            lock = ThreadLock.open_existing(self.path(owner))
            if lock is not None:
                with contextlib.closing(lock):
                    if (note := lock.read()) is not None:
                        found.append(Look(owner, note, None if lock.in_use() else used_s, at_work=lock.is_shut()))
        return found

    async def enter_serving(self) -> ThreadLock:
        """Return the serving lock, behind its gate: each process that serves the instance shares it."""
        return await self.enter(_SERVING)

    def serving(self) -> ThreadLock:
        return ThreadLock.open(self.path(_SERVING))


async def shut(lock: ThreadLock) -> None:
    """Shut the gate of a lock; SandboxUnavailable, and the lock closed, when that takes long."""
    try:
        # Longer than a sandbox takes to come up on a busy host, or to be removed.
        await lock.gate(60.0)
    except BaseException:
        lock.close()
        raise


def let_go(lock: ThreadLock) -> None:
    """Close a lock behind its gate, and remove its file if that notes no sandbox: there is none."""
    if lock.read() is None:
        lock.retire()
    lock.close()


@contextlib.contextmanager
def retired(sandbox_id: str, *locks: ThreadLock) -> Iterator[None]:
    """Retire locks, behind their gates, when the block has removed their sandbox; one that stays is logged."""
    try:
        yield
        for lock in locks:
            lock.retire()
    except SandboxError as error:
        log.warning("sandbox %s could not be removed, a later look will: %s", sandbox_id, error)
    finally:
        for lock in locks:
            lock.close()


@dataclass(frozen=True)
class Stopped:
    """A sandbox as it was when it was stopped.

    `processes` ran in the background, ended with it or with an earlier stop, and were not reported yet. `since_s` is
    when it was stopped, in seconds since 1970.
    """

    note: Note
    processes: int = 0
    since_s: float = field(default=0.0, compare=False)


class StoppedSandboxes(NamedFiles):
    """Which sandboxes of an instance are stopped: a file for each, by its owner. `clock` is in seconds since 1970.

    A file is written before its container is stopped, and removed after the container runs again or is removed. After a
    crash in between, the container may run or be gone: a process changes a file behind the gate of its owner's
    ThreadLock, and looks at the container. The time of a file is since when its sandbox is stopped.
    """

    def __init__(self, channel_root: Path, instance: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(channel_root / "stopped", f"{instance}-", ".stopped")
        self._clock = clock

    def write(self, owner: Owner, stopped: Stopped) -> None:
        """Note that an owner's sandbox is stopped, from now on; raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(owner)
        half = path.with_suffix(".half")
        try:
            half.write_text(json.dumps({**asdict(stopped.note), "processes": stopped.processes}))
            now_s = self._clock()
            os.utime(half, (now_s, now_s))
            half.rename(path)
        except OSError:
            half.unlink(missing_ok=True)
            raise

    def read(self, owner: Owner) -> Stopped | None:
        """Return an owner's stopped sandbox; None for none, or one that cannot be read."""
        try:
            with self.path(owner).open("rb") as file:
                said, since_s = json.loads(file.read(64 * 1024)), os.fstat(file.fileno()).st_mtime
            return Stopped(Note.of(said), int(said["processes"]), since_s)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def remove(self, owner: Owner) -> None:
        self.path(owner).unlink(missing_ok=True)

    def surplus(self, *, timeout_s: float, limit: int) -> Sequence[Owner]:
        """Return the owners of sandboxes to remove: stopped for `timeout_s`, or past `limit` of all."""
        return surplus(self.found_owners(), until_s=self._clock() - timeout_s, limit=limit)
