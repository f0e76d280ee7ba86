"""WorkspaceTransfer: the files of a thread, taken out of a Docker engine and put into it as a whole.

They are read and written through **carriers**: containers that mount a workspace and are never started. Nothing of the
tenant's runs on the way, whether its sandbox lives or not: the engine packs and unpacks within the carrier's root. A
lock file says that a carrier is in use: one whose lock no process has was left by a dead process, and is removed by the
next that finds it.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.lock_directory import LockFiles
from sandbox.engines.docker.parts import Parts, id_of
from sandbox.engines.docker.request_threads import to_the_end
from sandbox.engines.pooled_sandbox import pooled_id
from sandbox.engines.workspace_archive import ArchiveBroken, Contents, Passing, bounded, read_tar, streamed, write_tar
from sandbox.errors import NoSpace, SandboxBusy, SandboxError
from sandbox.protocols import WORKSPACE
from sandbox.sandbox import Owner, SandboxSpec, owner_by_name, owner_of

log = logging.getLogger(__name__)

_ROOT = WORKSPACE.removeprefix("/")
_Value = TypeVar("_Value")

_MIB = 1024 * 1024


class EngineDisk:
    """The disk of one engine; `free_bytes` returns what is free at a path, and raises OSError where it is not seen."""

    def __init__(self, requests: DockerRequests, free_bytes: Callable[[Path], int] | None = None) -> None:
        self._requests = requests
        self._free_bytes = free_bytes or _free_bytes
        self._data: Path | None = None

    async def refuse_short(self, reserve_bytes: int, coming_bytes: int) -> None:
        """Raise NoSpace where less than a reserve would be free after so many bytes more; 0 is no reserve."""
        if reserve_bytes:
            _refuse_short(await self.free_bytes(), reserve_bytes, coming_bytes)

    async def free_bytes(self) -> int:
        if self._data is None:
            said = (await self._requests.ask(docker_requests.engine_info)).get("DockerRootDir")
            self._data = Path(said) if said else None
        return self._free()

    def watched(self, pieces: Iterable[bytes], reserve_bytes: int) -> Iterator[bytes]:
        """Pass pieces on, to a file of the engine's; NoSpace as soon as less than the reserve is free."""
        unseen_bytes = 0
        for piece in pieces:
            unseen_bytes += len(piece)
            if reserve_bytes and unseen_bytes >= 16 * _MIB:
                _refuse_short(self._free(), reserve_bytes, unseen_bytes)
                unseen_bytes = 0
            yield piece

    def _free(self) -> int:
        # The volumes may be on a disk of their own, and to look into the data directory is root's.
        for path in (self._data / "volumes", self._data) if self._data is not None else ():
            try:
                return self._free_bytes(path)
            except OSError:
                continue
        # A gateway that does not see these runs in a container, whose own root is on the same machine's disk: both see
        # the channel directories.
        return self._free_bytes(Path("/"))


class UnseenDisk:
    """The disk of an engine on another machine, which only that sees: it refuses what does not fit."""

    async def refuse_short(self, reserve_bytes: int, coming_bytes: int) -> None: ...

    def watched(self, pieces: Iterable[bytes], reserve_bytes: int) -> Iterable[bytes]:  # noqa: ARG002 - nothing to see
        return pieces


def _refuse_short(free_bytes: int, reserve_bytes: int, coming_bytes: int) -> None:
    if free_bytes - coming_bytes < reserve_bytes:
        # A tenant must not learn how much of the disk others use.
        raise NoSpace(
            f"the engine's disk is nearly full, and {coming_bytes // _MIB:,} MiB more would use the operator's "
            "reserve: remove files, or ask the operator to free space"
        )


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True)
class WorkspaceTransfer:
    """Satisfies Workspaces. New files are written to a pooled sandbox's volume. A thread has one carrier at most."""

    parts: Parts
    disk: EngineDisk | UnseenDisk

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Value]) -> _Value | None:
        owner, claims = owner_of(spec), self.parts.claims
        async with self.alone(owner), self.parts.requests.threads.streams.turns.turn(owner[0]):
            if not await claims.has_files(owner):
                return None
            # How often a workspace is read anew that changes while it is read.
            for left in reversed(range(3)):
                try:
                    async with self.carrier(spec, await claims.pooled_of(owner)) as carrier:
                        return await self._read(carrier, spec, take)
                except ArchiveBroken as error:
                    if not left:
                        raise ArchiveBroken(f"{error}; wait until nothing writes in this thread") from error
        raise AssertionError("unreachable")

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        """Replace a thread's files; the old ones stay until the new ones are complete, in a volume beside them."""
        owner, parts = owner_of(spec), self.parts
        await self.parts.setup.prepared()  # an engine on which nothing can be made must not cost the old files
        async with self.alone(owner), parts.requests.threads.streams.turns.turn(owner[0]), AsyncExitStack() as stack:
            await self.disk.refuse_short(spec.limits.disk_reserve_bytes, size_bytes)
            lock = await stack.enter_async_context(parts.locks.entered(owner))
            note, stopped = lock.read(), parts.stopped.read(owner)
            if note is not None and not lock.unused():
                raise SandboxBusy("the thread has calls in progress: wait for them or cancel them")
            fresh = await stack.enter_async_context(self._beside(spec, give))
            for container in await parts.containers.of_kind("sandbox", owner):
                await parts.containers.remove(id_of(container))
            pooled = await parts.claims.pooled_of(owner)
            if pooled:
                await parts.containers.remove(pooled)
            stack.callback(lock.retire)
            # A stopped sandbox is gone too, and would not fit the new files.
            parts.stopped.remove(owner)
            was = note or (None if stopped is None else stopped.note)
            if was is not None:
                parts.record(owner, was, "removed", "its thread's files are being replaced")
            await parts.claims.replace_files(owner, fresh)

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good, with what a process that died while it read them left."""
        owner = owner_by_name(tenant, thread)
        await self._remove_unused(owner)  # in use, it keeps the engine from removing them
        return await self.parts.claims.remove_files(owner)

    @asynccontextmanager
    async def _beside(self, spec: SandboxSpec, give: Callable[[], Contents]) -> AsyncIterator[str]:
        """Have files in a pooled sandbox's volume, and return its id; removed at the end unless it was claimed."""
        fresh = pooled_id(self.parts.new_suffix())
        owner, (user, _) = owner_of(spec), config.pooled_user_ids(self.parts.instance, fresh)
        lock = self.parts.pool_locks.enter_new(fresh)  # or the next reconciliation would remove it, for it is unclaimed

        def write(carrier: str, passing: Passing) -> None:
            pieces = self.disk.watched(write_tar(give(), root=_ROOT, owner=user), spec.limits.disk_reserve_bytes)
            self.parts.requests.put_archive(carrier, "/", passing(pieces))

        try:
            async with self.carrier(spec, fresh) as carrier:
                await self._stream(lambda passing: write(carrier, passing))
            yield fresh
        except BaseException:
            try:
                await asyncio.shield(self.parts.claims.give_back(owner, fresh, filled=True))
            except SandboxError as error:
                log.warning("files that were to replace a thread's stay until the next start: %s", error)
            raise
        finally:
            lock.retire()

    async def _read(self, carrier: str, spec: SandboxSpec, take: Callable[[Contents], _Value]) -> _Value:
        def read(passing: Passing) -> _Value:
            # However it ends, the engine must not wait for a reader.
            with closing(self.parts.requests.archive_of(carrier, WORKSPACE)) as pieces:
                return take(read_tar(bounded(passing(pieces), spec.limits.workspace_bytes), _ROOT))

        return await self._stream(read)

    async def _stream(self, work: Callable[[Passing], _Value]) -> _Value:
        return await streamed(work, self.parts.requests.threads.streams.begin)

    @property
    def locks(self) -> LockFiles:
        return LockFiles(self.parts.channel_root / "carriers", "")

    @asynccontextmanager
    async def alone(self, owner: Owner) -> AsyncIterator[None]:
        """Have a thread's workspace to oneself, of all processes; SandboxBusy while another call has it."""
        name = config.carrier_name(self.parts.instance, owner)
        lock = self.locks.try_enter(name)
        if lock is None:
            raise SandboxBusy("the files of this thread are being saved or replaced: wait until that is done")
        try:
            if await self.parts.requests.ask(docker_requests.named_containers, [name]):
                async with self.parts.requests.threads.streams.turns.turn(owner[0]):
                    await self._remove(name)
            yield
        finally:
            lock.retire()
            self.locks.close()

    @asynccontextmanager
    async def carrier(self, spec: SandboxSpec, pooled: str) -> AsyncIterator[str]:
        """Have a container that mounts a workspace, which is made if there is none; the caller is alone() with it.

        `pooled` is the pooled sandbox whose volume has the files, "" for the thread's own volume.
        """
        quota = (await self.parts.setup.prepared()).workspace_quota
        name = config.carrier_name(self.parts.instance, owner_of(spec))
        body = config.carrier_config(self.parts.runtime_image, spec, self.parts.instance, quota=quota, pooled=pooled)
        try:
            await self.parts.requests.ask(docker_requests.create_container, body, name)
            yield name
        finally:
            try:
                await self._remove(name)
            except SandboxError as error:
                # A later call or start removes it. What counts is how the stream ended.
                log.warning("a container that carried a workspace is left: %s", error)

    async def remove_left(self) -> None:
        """Remove what dead processes of this instance left of saving or replacing a workspace."""
        for container in await self.parts.containers.of_kind("carrier"):
            await self._remove_unused(config.owner_in(container["Labels"]))
        for _, name in self.locks.found():  # their process died before there was a container, or after it
            lock = self.locks.try_enter(name, make=False)
            if lock is not None:
                lock.retire()
        self.locks.close()

    async def _remove_unused(self, owner: Owner) -> None:
        with suppress(SandboxBusy):
            async with self.alone(owner):
                pass

    async def _remove(self, name: str) -> None:
        """Remove a carrier in the caller's turn of its tenant's streams: an engine may be stuck with it."""
        requests = self.parts.requests
        removing = requests.threads.streams.begin(lambda: requests.ask_here(docker_requests.remove_container, name))
        await to_the_end(removing)
