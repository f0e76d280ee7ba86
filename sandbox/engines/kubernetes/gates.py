"""Gates: one process at a time creates, stops or removes a thread's sandbox, or changes whose files are where.

A gate is the holder of the thread's Lease, and is renewed while its process works. A process that dies leaves its gate
shut until the Lease has expired, and in the record what it was about to make. Each write names the version that it
replaces, so one whose gate another process has taken over fails.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from sandbox.engines.background import BackgroundTasks
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.mirror import Mirror
from sandbox.engines.kubernetes.records import Known, Record
from sandbox.engines.kubernetes.resources import LEASES, Made
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.sandbox import Owner

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

LEASE_S = 15
_RENEW_S = 5.0
# Clocks of machines differ, so a holder's own time counts only when it is long ago.
_LONG_AGO_S = 60.0
# Longer than a sandbox takes to come up on a busy node, or to be removed.
WAIT_S = 60.0
_LONGEST_PAUSE_S = 0.5


class Gate:
    """A thread's gate, shut by this process. `record` is what the Lease says."""

    def __init__(self, gates: "Gates", owner: Owner, lease: Made) -> None:
        self.owner = owner
        self.record = Record.of(lease)
        self.handed_over = False
        """Whether work in the background leaves the gate, not the block that entered it."""
        self._gates = gates
        self._lease: Made | None = lease
        self._writing = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew())

    async def write(self, record: Record) -> Record:
        """Replace the record; SandboxUnavailable when another process has taken the gate over."""
        await self._put(record, holds=True)
        return self.record

    async def hold(self) -> None:
        """Make sure that the gate is this process' own still; raises as write().

        A process that stalls loses its gate and does not know it. So what is to be removed is read first, then this is
        called, and then exactly what was read is removed: what another process has made meanwhile is not that.
        """
        await self._put(self.record, holds=True)

    async def finish(self, record: Record) -> Record:
        """Replace the record and open the gate, in one step; raises as write()."""
        await self._put(record, holds=False)
        self._lease = None
        self._renewing.cancel()
        return self.record

    async def leave(self) -> None:
        """Open the gate. A record of nothing is removed with its Lease. What fails is left to expire."""
        try:
            if self._lease is not None:
                record = self.record
                if not (record.has_sandbox or record.claim or record.other_claim or record.carrier):
                    await self._remove()
                else:
                    await self._put(record, holds=False)
        except SandboxError as error:
            log.warning("the record of a thread expires by itself: %s", error)
        finally:
            self._lease = None
            self._renewing.cancel()

    async def _remove(self) -> None:
        async with self._writing:
            if self._lease is not None:
                metadata = self._lease["metadata"]
                where = self._gates.site.namespace, metadata["name"]
                with suppress(Conflict):
                    await self._gates.requests.delete(LEASES, *where, version=metadata["resourceVersion"])
                self._gates.mirror.forget(metadata["name"])

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            with suppress(SandboxError):  # the next write says so
                await self._put(self.record, holds=True)

    async def _put(self, record: Record, *, holds: bool) -> None:
        # To its end, also when the caller gives up: which version is the last one must be known.
        await asyncio.shield(_retrieved(asyncio.ensure_future(self._written(record, holds=holds))))

    async def _written(self, record: Record, *, holds: bool) -> None:
        async with self._writing:
            if self._lease is None:
                raise SandboxUnavailable("another gateway has taken over what this one did for the thread: try again")
            held = self._gates.body(self.owner, record, holds=holds)
            held["metadata"]["resourceVersion"] = self._lease["metadata"]["resourceVersion"]
            try:
                written = await self._gates.requests.update(LEASES, self._gates.site.namespace, held)
            except Conflict:
                written = await self._found_written(held)
            self._lease = written
            if written is None:
                raise SandboxUnavailable("another gateway has taken over what this one did for the thread: try again")
            self.record = record
            self._gates.mirror.put(written)

    async def _found_written(self, held: Made) -> Made | None:
        """Return the Lease if an earlier attempt, whose answer was lost, has written it."""
        found = await self._gates.requests.get(LEASES, self._gates.site.namespace, held["metadata"]["name"])
        same = found is not None and found["spec"] == held["spec"] and Record.of(found) == Record.of(held)
        return found if same else None


class Gates:
    """The gates of an instance. `process` names this process as a holder; `clock` is in seconds since 1970."""

    def __init__(
        self,
        requests: KubernetesRequests,
        site: Site,
        mirror: Mirror[Known],
        process: str,
        clock: Callable[[], float],
    ) -> None:
        self.requests = requests
        self.site = site
        self.mirror = mirror
        self.background = BackgroundTasks()
        self._process = process
        self._clock = clock
        self._local: dict[Owner, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def entered(
        self, owner: Owner, *, make: bool = False, wait_s: float = WAIT_S, first: Record | None = None
    ) -> AsyncIterator[Gate | None]:
        """Be behind a thread's gate; None where there is no Lease, unless it is to be made.

        One that stays shut for longer raises SandboxUnavailable, or yields None if there was to be no waiting. With
        `first` the Lease is made with that record, and where there is one already this yields None.
        """
        local, users = self._local.get(owner, (asyncio.Lock(), 0))
        self._local[owner] = local, users + 1
        entering: asyncio.Future[Gate | None] | None = None
        given_up = asyncio.Event()
        gate: Gate | None = None
        try:
            if wait_s or not local.locked():
                await _in_time(local.acquire(), max(wait_s, 1.0))
                # To its end, also when the caller gives up: a gate that was shut meanwhile has to be opened.
                work = self._first(owner, first) if first else self._entered(owner, given_up, make=make, wait_s=wait_s)
                entering = _retrieved(asyncio.ensure_future(work))
                gate = await asyncio.shield(entering)
            yield gate
        finally:
            given_up.set()
            if gate is None or not gate.handed_over:
                await asyncio.shield(self.background.begin(self._left(owner, entering)))

    async def left(self, gate: Gate) -> None:
        """Leave a gate that was handed over."""
        try:
            await gate.leave()
        finally:
            self._release(gate.owner, locked=True)

    async def _left(self, owner: Owner, entering: asyncio.Future[Gate | None] | None) -> None:
        try:
            if entering is not None:
                await asyncio.wait({entering})
                gate = None if entering.exception() is not None else entering.result()
                if gate is not None:
                    await gate.leave()
        finally:
            self._release(owner, locked=entering is not None)

    def _release(self, owner: Owner, *, locked: bool) -> None:
        local, users = self._local.pop(owner)
        if locked:
            local.release()
        if users > 1:
            self._local[owner] = local, users - 1

    def body(self, owner: Owner, record: Record, *, holds: bool) -> Made:
        """Return a thread's Lease."""
        made = manifests.lease(self.site, owner)
        made["metadata"]["annotations"][manifests.RECORD] = record.annotation()
        if record.has_sandbox or holds:
            made["metadata"]["labels"][manifests.STATE] = record.state
        if holds:
            now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            made["spec"] = {"holderIdentity": self._process, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        return made

    async def _first(self, owner: Owner, record: Record) -> Gate | None:
        """Return the gate of a Lease that this has made; None where there was one before."""
        made = self.body(owner, record, holds=True)
        try:
            lease = await self.requests.create(LEASES, self.site.namespace, made)
        except Conflict:  # also if an earlier attempt, whose answer was lost, has made it
            found = await self.requests.get(LEASES, self.site.namespace, self._name(owner))
            if found is None or found["spec"] != made["spec"] or Record.of(found) != record:
                return None
            lease = found
        self.mirror.put(lease)
        return Gate(self, owner, lease)

    async def _entered(self, owner: Owner, given_up: asyncio.Event, *, make: bool, wait_s: float) -> Gate | None:
        loop = asyncio.get_running_loop()
        began_s, pause_s = loop.time(), 0.02
        seen: tuple[object, float] = None, began_s
        # Where the mirror knows of nothing there usually is nothing, and a request is saved.
        tries_new = make and self.site.lease_name(owner) not in self.mirror.items
        while True:
            found = None if tries_new else await self.requests.get(LEASES, self.site.namespace, self._name(owner))
            if found is None and not make:
                return None
            if found is None:
                tries_new = False
                with suppress(Conflict):
                    made = self.body(owner, Record(), holds=True)
                    return Gate(self, owner, await self.requests.create(LEASES, self.site.namespace, made))
                continue
            version = found["metadata"]["resourceVersion"]
            seen = seen if seen[0] == version else (version, loop.time())
            if self._is_free(found, loop.time() - seen[1]):
                record = Record.of(found)
                taken = self.body(owner, record, holds=True)
                taken["metadata"]["resourceVersion"] = version
                with suppress(Conflict):
                    written = await self.requests.update(LEASES, self.site.namespace, taken)
                    if written is not None:
                        self.mirror.put(written)
                        return Gate(self, owner, written)
                continue
            if loop.time() - began_s >= wait_s:
                if not wait_s:
                    return None
                raise SandboxUnavailable(
                    f"another gateway has been creating, saving or removing this thread's sandbox for over "
                    f"{wait_s:.0f} s: try again"
                )
            if given_up.is_set():
                return None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _name(self, owner: Owner) -> str:
        return self.site.lease_name(owner)

    def _is_free(self, lease: Made, unchanged_s: float) -> bool:
        """Return whether a gate is open, this process's own, or its holder has not renewed it in time."""
        spec = lease["spec"]
        holder = spec.get("holderIdentity")
        if not holder or holder == self._process or unchanged_s >= LEASE_S:
            return True
        try:
            renewed_s = datetime.fromisoformat(spec["renewTime"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return False
        return self._clock() - renewed_s >= _LONG_AGO_S


def _retrieved(task: "asyncio.Future[_Value]") -> "asyncio.Future[_Value]":
    """Have asyncio not log the error of a task whose caller may give up."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _in_time(waiting: Any, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await waiting
    except TimeoutError as error:
        raise SandboxUnavailable(
            f"this gateway has been creating, saving or removing the thread's sandbox for over {limit_s:.0f} s: "
            "try again"
        ) from error
