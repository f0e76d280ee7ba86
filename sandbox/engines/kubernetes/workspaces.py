"""Workspaces: the files of a thread as a whole, taken out of a sandbox's volume and put into it by a daemon.

They go through the daemon of the thread's sandbox, if it runs. Else through that of a **carrier**: a short-lived Pod of
the runtime image over the thread's volume claim, behind the thread's gate. Nothing of the tenant's runs in it. Files
that replace others are written to a claim of their own, and one update of the thread's record has them take the
others' place: at no moment are some of them there. The record names a carrier and a second claim before they are made.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sandbox.client import remote_archive
from sandbox.client.channel import Channel
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.boot import Boot
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.kubernetes_requests import CLAIMS
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.workspace_archive import ArchiveBroken, Contents, Passing, read_tar, streamed, write_tar
from sandbox.errors import DaemonLost, SandboxBusy, SandboxError
from sandbox.fair_semaphore import FairSemaphore
from sandbox.sandbox import Owner, SandboxSpec, owner_of

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

# Each takes a thread of this process, and a Pod where no sandbox runs.
_AT_ONCE, _WAITING_LIMIT = 4, 64
# How often a workspace is read anew that changes while it is read, or whose sandbox stops.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Workspaces:
    """Satisfies Workspaces."""

    parts: Parts
    boot: Boot
    _turns: FairSemaphore = field(default_factory=lambda: FairSemaphore(_AT_ONCE, _WAITING_LIMIT))
    _alone: set[Owner] = field(default_factory=set)

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Value]) -> _Value | None:
        owner = owner_of(spec)
        await self.parts.prepared()
        with self._exclusive(owner):
            async with self._turns.turn(owner[0]):
                for left in reversed(range(_ATTEMPTS)):
                    try:
                        async with self._reached(owner, spec) as channel:
                            return None if channel is None else await self._read(channel, take)
                    except (ArchiveBroken, DaemonLost, OSError) as error:
                        if not left:
                            raise ArchiveBroken(f"{error}; wait until nothing writes in this thread") from error
        raise AssertionError("unreachable")

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        del size_bytes  # the storage class bounds a claim, and no disk here is the operator's own
        owner, parts = owner_of(spec), self.parts
        await parts.prepared()
        with self._exclusive(owner):
            async with self._turns.turn(owner[0]), parts.gates.entered(owner, make=True) as gate:
                assert gate is not None  # noqa: S101 - it is made
                await parts.clean(gate)
                await self._refuse_busy(gate)
                fresh = parts.site.name("workspace", secrets.token_hex(8))
                try:
                    async with self._carrier(gate, spec, fresh) as channel:
                        await self._write(channel, give)
                    if gate.record.state == "running" and not await parts.retired(gate, attached=True, busy=False):
                        raise SandboxBusy(_BUSY)
                except BaseException:
                    await asyncio.shield(self._forget(gate))
                    raise
                if gate.record.has_sandbox:
                    # A stopped sandbox goes too, for it was made for the old files.
                    await parts.drop(gate, "its thread's files are being replaced")
                old = gate.record.claim
                await gate.write(replace(gate.record, claim=fresh, other_claim=old, thread=spec.thread))
                await self._forget(gate)

    async def _refuse_busy(self, gate: Gate) -> None:
        if gate.record.state == "running" and await self.parts.in_use(gate):
            raise SandboxBusy(_BUSY)

    async def _forget(self, gate: Gate) -> None:
        """Remove the second claim that a record names; what fails the next process that enters the gate does."""
        try:
            await self.parts.clean(gate)
        except SandboxError as error:
            log.warning("a claim that is not needed any more stays until the next start: %s", error)

    @asynccontextmanager
    async def _reached(self, owner: Owner, spec: SandboxSpec) -> AsyncIterator[Channel | None]:
        """Have a channel to a daemon over a thread's files; None where it has none."""
        parts = self.parts
        async with parts.gates.entered(owner) as gate:
            if gate is None or not gate.record.claim:
                yield None
                return
            await parts.clean(gate)
            if gate.record.state != "running":
                async with self._carrier(gate, spec, gate.record.claim) as channel:
                    yield channel
                return
            mine = parts.attached.by_id.get(gate.record.sandbox)
            one = mine or await parts.attach(owner, gate.record)
        # The gate is open: calls go on meanwhile, and the sandbox may be stopped.
        try:
            yield one.channel
        finally:
            if mine is None:
                one.close()

    @asynccontextmanager
    async def _carrier(self, gate: Gate, spec: SandboxSpec, claim: str) -> AsyncIterator[Channel]:
        """Have a Pod over a claim, the thread's own or a second one that is made; the Pod is removed at the end."""
        parts, site, owner = self.parts, self.parts.site, gate.owner
        name, second = f"carrier-{secrets.token_hex(6)}", "" if claim == gate.record.claim else claim
        await parts.namespaces.ready(spec)
        record = await gate.write(replace(gate.record, carrier=name, other_claim=second))
        if second:
            await parts.namespaces.create(CLAIMS, manifests.claim(site, owner, second, spec))
        carried = replace(spec, image=site.runtime_image)
        body = manifests.pod(site, carried, owner, name, claim, kind="carrier")
        noted = replace(record, sandbox=name, epoch=parts.new_epoch(), pod="")
        try:
            one = await self.boot.started(owner, noted, body)
            try:
                await self.boot.inspection.introduced(one.channel)
                yield one.channel
            finally:
                one.close()
        finally:
            await asyncio.shield(self._removed(gate, name))

    async def _removed(self, gate: Gate, name: str) -> None:
        await self.parts.workloads.remove(gate.owner, name)
        await gate.write(replace(gate.record, carrier=""))

    async def _read(self, channel: Channel, take: Callable[[Contents], _Value]) -> _Value:
        with await remote_archive.opened(channel) as connection:

            def read(passing: Passing) -> _Value:
                return take(read_tar(passing(remote_archive.received(connection)), remote_archive.TOP))

            return await _in_thread(read, connection)

    async def _write(self, channel: Channel, give: Callable[[], Contents]) -> None:
        with await remote_archive.opened(channel, fill=True) as connection:

            def write(passing: Passing) -> None:
                remote_archive.sent(connection, passing(write_tar(give(), root=remote_archive.TOP, owner=0)))

            await _in_thread(write, connection)

    @contextmanager
    def _exclusive(self, owner: Owner) -> Iterator[None]:
        """Save or replace a thread's files alone in this process; between processes its gate decides."""
        if owner in self._alone:
            raise SandboxBusy("the files of this thread are being saved or replaced: wait until that is done")
        self._alone.add(owner)
        try:
            yield
        finally:
            self._alone.discard(owner)


_BUSY = "the thread has calls in progress: wait for them or cancel them"


async def _in_thread(work: Callable[[Passing], _Value], connection: socket.socket) -> _Value:
    """Run work that blocks on a connection; a caller that gives up ends the connection, and then waits for the work."""

    def begin(blocking: Callable[[], _Value]) -> asyncio.Future[_Value]:
        return asyncio.ensure_future(asyncio.to_thread(blocking))

    streaming = asyncio.ensure_future(streamed(work, begin))
    try:
        return await asyncio.shield(streaming)
    except asyncio.CancelledError:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        streaming.cancel()
        await asyncio.wait({streaming})
        raise
