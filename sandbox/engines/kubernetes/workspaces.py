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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sandbox.client import remote_archive
from sandbox.client.channel import Channel
from sandbox.client.remote_archive import WorkspaceCounts
from sandbox.engines.kubernetes import copied_volumes, manifests
from sandbox.engines.kubernetes.boot import Boot
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.parts import Parts, is_over
from sandbox.engines.kubernetes.reachability import in_use, refuse_unreached, retired
from sandbox.engines.kubernetes.resources import CLAIMS
from sandbox.engines.workspace_archive import ArchiveBroken, Contents, Passing, bounded, read_tar, streamed, write_tar
from sandbox.errors import DaemonLost, SandboxBusy, SandboxError
from sandbox.fair_semaphore import FairSemaphore
from sandbox.sandbox import Owner, SandboxSpec, owner_of

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

# Each takes a thread of this process, and a Pod where no sandbox runs. One tenant never has all of them.
_AT_ONCE, _OF_ONE_TENANT, _WAITING_LIMIT = 4, 2, 64
_WAITING = "workspaces of this tenant wait to be saved or replaced"
# How often a workspace is read anew that changes while it is read, or whose sandbox stops.
_ATTEMPTS = 3
# Drivers take longer to make a volume of a copy than an empty one, and the files of it are given away one by one.
_FROM_COPY_S = 240.0


@dataclass(frozen=True)
class Reached:
    """A daemon over a thread's files, and their claim; `at_rest`: it is a carrier's, and nothing else runs there.

    `runtime` is the daemon's, not that of the spec while a sandbox runs from before a change of the policy.
    """

    channel: Channel
    claim: str
    runtime: str
    at_rest: bool


@dataclass(frozen=True)
class Workspaces:
    """Satisfies Workspaces."""

    parts: Parts
    boot: Boot
    _turns: FairSemaphore = field(
        default_factory=lambda: FairSemaphore(_AT_ONCE, _WAITING_LIMIT, of_one=_OF_ONE_TENANT, what=_WAITING)
    )
    _alone: set[Owner] = field(default_factory=set)

    async def save_workspace(self, spec: SandboxSpec, take: Callable[[Contents], _Value]) -> _Value | None:
        return await self.read(spec, lambda reached: self._read(reached.channel, spec, take))

    async def read(self, spec: SandboxSpec, work: Callable[[Reached], Awaitable[_Value]]) -> _Value | None:
        """Return what `work` makes of a thread's files; None where it has none.

        Work that fails because they change, or a sandbox stops, is done again.
        """
        owner = owner_of(spec)
        await self.parts.prepared()
        with self._exclusive(owner):
            async with self._turns.turn(owner[0]):
                for left in reversed(range(_ATTEMPTS)):
                    try:
                        async with self._reached(owner, spec) as reached:
                            return None if reached is None else await work(reached)
                    except (ArchiveBroken, DaemonLost, OSError) as error:
                        if not left:
                            raise ArchiveBroken(f"{error}; wait until nothing writes in this thread") from error
        raise AssertionError("unreachable")

    async def replace_workspace(self, spec: SandboxSpec, give: Callable[[], Contents], *, size_bytes: int = 0) -> None:
        del size_bytes  # the storage class bounds a claim, and no disk here is the operator's own

        async def fill(gate: Gate, fresh: str) -> None:
            async with self.carrier(gate, spec, fresh) as channel:
                await self._write(channel, give)

        await self.replace_by(spec, fill)

    async def replace_by(self, spec: SandboxSpec, make: Callable[[Gate, str], Awaitable[None]]) -> None:
        """Replace a thread's claim by another one, which `make` makes under a name behind the thread's gate."""
        owner, parts = owner_of(spec), self.parts
        await parts.prepared()
        with self._exclusive(owner):
            async with self._turns.turn(owner[0]), parts.gates.entered(owner, make=True) as gate:
                assert gate is not None  # noqa: S101 - it is made
                await parts.clean(gate)
                await self._refuse_busy(gate)
                fresh = parts.site.name("workspace", secrets.token_hex(8))
                try:
                    await make(gate, fresh)
                    if gate.record.state == "running" and not await retired(parts, gate, attached=True, busy=False):
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
        if gate.record.state != "running":
            return
        try:
            busy = await in_use(self.parts, gate)
        except (SandboxError, OSError) as error:
            if not is_over(error):
                await refuse_unreached(self.parts, gate, error)
            return
        if busy:
            raise SandboxBusy(_BUSY)

    async def _forget(self, gate: Gate) -> None:
        """Remove the second claim that a record names; what fails the next process that enters the gate does."""
        try:
            await self.parts.clean(gate)
        except SandboxError as error:
            log.warning("a claim that is not needed any more stays until the next start: %s", error)

    @asynccontextmanager
    async def _reached(self, owner: Owner, spec: SandboxSpec) -> AsyncIterator[Reached | None]:
        parts = self.parts
        async with parts.gates.entered(owner) as gate:
            if gate is None or not gate.record.claim:
                yield None
                return
            await parts.clean(gate)
            claim, runtime = gate.record.claim, gate.record.runtime
            if gate.record.state != "running":
                async with self.carrier(gate, spec, claim) as channel:
                    yield Reached(channel, claim, spec.runtime, at_rest=True)
                return
            mine = parts.attached.by_id.get(gate.record.sandbox)
            one = mine or await parts.attach(owner, gate.record)
        # The gate is open: calls go on meanwhile, and the sandbox may be stopped.
        try:
            yield Reached(one.channel, claim, runtime, at_rest=False)
        finally:
            if mine is None:
                one.close()

    @asynccontextmanager
    async def carrier(self, gate: Gate, spec: SandboxSpec, claim: str, *, copy: str = "") -> AsyncIterator[Channel]:
        """Have a Pod over a claim, the thread's own or a second one that is made; the Pod is removed at the end.

        With `copy` the second one is made of that VolumeSnapshot, and its files are given to the user of the claim.
        """
        parts, site, owner = self.parts, self.parts.site, gate.owner
        name, second = f"carrier-{secrets.token_hex(6)}", "" if claim == gate.record.claim else claim
        await parts.namespaces.ready(spec)
        record = await gate.write(replace(gate.record, carrier=name, other_claim=second))
        if second:
            made = manifests.claim(site, owner, second, spec)
            await parts.namespaces.create(CLAIMS, copied_volumes.claim_of(made, copy) if copy else made)
        carried = replace(spec, image=site.runtime_image)
        body = manifests.pod(site, carried, owner, name, claim, kind="carrier")
        if copy:
            body = copied_volumes.adopting(body)
        noted = replace(record, sandbox=name, epoch=parts.new_epoch(), pod="")
        try:
            one = await self.boot.started(owner, noted, body, more_s=_FROM_COPY_S if copy else 0.0)
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

    async def _read(self, channel: Channel, spec: SandboxSpec, take: Callable[[Contents], _Value]) -> _Value:
        with await remote_archive.opened(channel) as connection:

            def read(passing: Passing) -> _Value:
                pieces = bounded(passing(remote_archive.received(connection)), spec.limits.workspace_bytes)
                return take(read_tar(pieces, remote_archive.TOP))

            return await _in_thread(read, connection)

    async def _write(self, channel: Channel, give: Callable[[], Contents]) -> None:
        with await remote_archive.opened(channel, fill=True) as connection:

            def write(passing: Passing) -> None:
                remote_archive.sent(connection, passing(write_tar(give(), root=remote_archive.TOP, owner=0)))

            await _in_thread(write, connection)

    async def settled(self, channel: Channel) -> WorkspaceCounts:
        """Have the kernel write to its disk what a workspace has, and return what that is."""
        with await remote_archive.opened(channel, settle=True) as connection:
            return await _in_thread(lambda _: remote_archive.settled(connection), connection)

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
