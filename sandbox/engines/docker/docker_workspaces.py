"""DockerWorkspaces: the files of a thread, taken out of a Docker engine and put into it as a whole.

Both go through a carrier: a container that mounts the workspace and is never started, so nothing of the tenant's runs
on the way, no matter whether a sandbox lives. The engine packs and unpacks within that container's root. A lock file
says that a carrier is in use: one without a holder was left by a process that died, and is removed by who meets it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TypeVar

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_ground import DockerGround
from sandbox.engines.pooled_sandbox import pooled_id
from sandbox.engines.workspace_archive import ArchiveBroken, Contents, read_tar, write_tar
from sandbox.errors import SandboxBusy, SandboxError
from sandbox.filesystem import WORKSPACE
from sandbox.owner import Owner, owner_by_name, owner_of
from sandbox.sandbox import SandboxSpec
from sandbox.thread_lock import ThreadLock

log = logging.getLogger(__name__)

_ROOT = WORKSPACE.removeprefix("/")
# How often a workspace is read anew that changes while it is read.
_TRIES = 3
_Value = TypeVar("_Value")
_Going = Callable[[Iterable[bytes]], Iterator[bytes]]
"""Passes pieces on until nobody waits for them any more."""


class DockerWorkspaces(DockerGround):
    """A DockerGround whose workspaces are saved and replaced."""

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Value]) -> _Value | None:
        """Return what `take`, in a thread, makes of a thread's files; None where there are none."""
        owner = owner_of(spec)
        async with self._alone(owner), self._requests.streams.turn(owner[0]):
            if not await self._claims.has_files(owner):
                return None
            for left in reversed(range(_TRIES)):
                try:
                    async with self._carrier(spec, await self._claims.held_by(owner)) as carrier:
                        return await self._read(carrier, take)
                except ArchiveBroken as error:
                    if not left:
                        raise ArchiveBroken(f"{error}; wait until nothing writes in this thread") from error
        raise AssertionError("unreachable")

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        """Have what `give`, called in a thread, yields in the place of a thread's files; its sandbox is removed.

        The old files stay until the new ones are whole, in a volume beside them.
        """
        owner = owner_of(spec)
        await self._prepared()  # an engine on which nothing can be made must not cost the old files
        async with self._alone(owner), self._requests.streams.turn(owner[0]), AsyncExitStack() as stack:
            await self._disk.refuse_short(spec.limits.disk_reserve_bytes, size_bytes)
            lock = await self._locks.enter(owner)
            gone = False
            try:
                note, stopped = lock.read(), self._stopped.read(owner)
                if note is not None and not lock.unused():
                    raise SandboxBusy("the thread has calls in progress: wait for them or cancel them")
                fresh = await stack.enter_async_context(self._beside(spec, give))
                for container in await self._requests.ask(docker_requests.list_containers, self._labels_at(owner)):
                    await self._destroy(container["Labels"][config.SANDBOX_LABEL])
                held = await self._claims.held_by(owner)
                if held:
                    await self._destroy(held)
                gone = True
                # Nothing is left to be started again, nor would it fit the files.
                self._stopped.remove(owner)
                was = note or (None if stopped is None else stopped.note)
                if was is not None:
                    self._told(owner, was, "removed", "its thread's files are being replaced")
                await self._claims.replace_files(owner, fresh)
            finally:
                if gone:
                    lock.retire()
                lock.close()

    async def remove_workspace(self, tenant: str, thread: str) -> bool:
        """Remove a thread's files for good, with what a process that died while it read them left."""
        owner = owner_by_name(tenant, thread)
        with suppress(SandboxBusy):  # they are in use, as the engine says next
            async with self._alone(owner):
                pass
        return await super().remove_workspace(tenant, thread)

    async def remove_carriers(self) -> None:
        """Remove what processes of this instance left that died while they saved or replaced a workspace."""
        for container in await self._own_containers("carrier"):
            labels = container["Labels"]
            with suppress(SandboxBusy):
                async with self._alone((labels[config.TENANT_LABEL], labels[config.THREAD_LABEL])):
                    pass
        for path in self._carriers.glob("*.lock"):  # of who died before there was a container, or after it
            lock = ThreadLock.open(path)
            if lock.try_gate():
                lock.retire()
            else:
                lock.close()
        with suppress(OSError):
            self._carriers.rmdir()

    @asynccontextmanager
    async def _beside(self, spec: SandboxSpec, give: Callable[[], Contents]) -> AsyncIterator[str]:
        """Have files in a pooled sandbox's volume, and return its id; removed at the end unless it was claimed."""
        fresh = pooled_id(self._new_suffix())
        owner, (user, _) = owner_of(spec), config.pooled_user_ids(self._instance, fresh)
        lock = self._pool_locks.enter(fresh)  # or whoever starts would remove what nobody has claimed

        def write(carrier: str, going: _Going) -> None:
            pieces = self._disk.watched(write_tar(give(), root=_ROOT, owner=user), spec.limits.disk_reserve_bytes)
            self._requests.put_archive(carrier, "/", going(pieces))

        try:
            async with self._carrier(spec, fresh) as carrier:
                await self._stream(lambda going: write(carrier, going))
            yield fresh
        except BaseException:
            try:
                await asyncio.shield(self._claims.give_back(owner, fresh, filled=True))
            except SandboxError as error:
                log.warning("files that were to replace a thread's stay until the next start: %s", error)
            raise
        finally:
            lock.retire()

    async def _read(self, carrier: str, take: Callable[[Contents], _Value]) -> _Value:
        def read(going: _Going) -> _Value:
            # Whatever ends it, the engine is not to wait for somebody who reads on.
            with closing(self._requests.archive_of(carrier, WORKSPACE)) as pieces:
                return take(read_tar(going(pieces), _ROOT))

        return await self._stream(read)

    async def _stream(self, work: Callable[[_Going], _Value]) -> _Value:
        """Return what work does in a thread with pieces; a caller that gives up waits until the thread has, too."""
        stopped = threading.Event()

        def going(pieces: Iterable[bytes]) -> Iterator[bytes]:
            for piece in pieces:
                if stopped.is_set():
                    raise ArchiveBroken("nobody waits for these files any more")
                yield piece

        streaming = self._requests.begin_stream(lambda: work(going))
        try:
            return await asyncio.shield(streaming)
        except asyncio.CancelledError:
            stopped.set()
            if not streaming.cancel():
                await asyncio.wait({streaming})
                if not streaming.cancelled():
                    streaming.exception()
            raise

    @asynccontextmanager
    async def _carrier(self, spec: SandboxSpec, held: str) -> AsyncIterator[str]:
        """Have a container that mounts a workspace, made if there is none; the caller is alone with it.

        `held` is the pooled sandbox whose volume has it, "" for the thread's own.
        """
        ground = await self._prepared()
        name = config.carrier_name(self._instance, owner_of(spec))
        body = config.carrier_config(self._runtime_image, spec, self._instance, quota=ground.workspace_quota, held=held)
        try:
            await self._requests.ask(docker_requests.create_container, body, name)
            yield name
        finally:
            try:
                await self._remove_carrier(name)
            except SandboxError as error:
                # Who meets it removes it. What counts is how the stream ended.
                log.warning("a container that carried a workspace is left: %s", error)

    async def _remove_carrier(self, name: str) -> None:
        """Remove a carrier in a turn of its tenant's streams, which the caller has: an engine may be stuck with it."""
        removing = self._requests.begin_stream(lambda: self._requests.ask_here(docker_requests.remove_container, name))
        await docker_requests.to_the_end(removing)

    @asynccontextmanager
    async def _alone(self, owner: Owner) -> AsyncIterator[None]:
        """Be the only one who carries a thread's workspace, of all processes; SandboxBusy when another does."""
        lock = self._carrying(owner)
        name = config.carrier_name(self._instance, owner)
        try:
            if await self._requests.ask(docker_requests.named_containers, [name]):
                async with self._requests.streams.turn(owner[0]):
                    await self._remove_carrier(name)
            yield
        finally:
            lock.retire()
            with suppress(OSError):
                self._carriers.rmdir()

    def _carrying(self, owner: Owner) -> ThreadLock:
        while True:
            lock = ThreadLock.open(self._carriers / f"{config.carrier_name(self._instance, owner)}.lock")
            if not lock.try_gate():
                lock.close()
                raise SandboxBusy("the files of this thread are being saved or replaced: wait until that is done")
            if not lock.gone:
                return lock
            lock.close()

    @property
    def _carriers(self) -> Path:
        return self._channel_root / "carriers"

    def _labels_at(self, owner: Owner) -> dict[str, str]:
        return {**self._labels("sandbox"), config.TENANT_LABEL: owner[0], config.THREAD_LABEL: owner[1]}
