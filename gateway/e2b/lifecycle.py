"""The life of a sandbox: created, paused, resumed, killed, each on request or when its time is over.

A sandbox is a thread; what E2B knows of it besides is in the database, so that its time is over after a restart too.
Killing deletes the thread. Pausing stops the thread's sandbox: its files stay, its processes and its memory do not.
"""

import asyncio
import contextlib
import secrets
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.e2b.access import Access, KeyHolder
from gateway.e2b.egress_rules import THREAD_PREFIX
from gateway.e2b.errors import Gone
from gateway.e2b.open_streams import OpenStreams
from gateway.errors import AirlockError, Conflict, NotFound, SandboxBusy, ThreadBusy, Unavailable
from gateway.http.calls import InProcessClient
from gateway.runs.threads import Threads
from gateway.sandboxes.sandbox_admin import SandboxAdmin
from gateway.storage.e2b_store import PAUSED, RUNNING, E2bSandbox, E2bStore
from gateway.tenancy.tenants import Tenants

log = structlog.get_logger(__name__)
_LETTERS = string.ascii_lowercase + string.digits
_ID_CHARS = 19
_EVERY_S = 2.0
# Of one tenant: those whose calls do not end keep no other tenant's waiting.
_ENDS_AT_ONCE = 16
_DUE_AT_ONCE = 64
# How long calls in progress may take to end before a sandbox is killed or paused.
_BUSY_S = 10.0
_POLL_S = 0.2
# When an end that failed is tried again.
_AGAIN_US = 60 * 1_000_000


@dataclass
class Lifecycle:
    """Creates, pauses, resumes and kills sandboxes."""

    store: E2bStore
    access: Access
    threads: Threads
    admin: SandboxAdmin
    tenants: Tenants
    streams: OpenStreams = field(default_factory=OpenStreams)
    _ending: Counter[str] = field(default_factory=Counter)

    async def create(
        self, who: KeyHolder, options: Mapping[str, Any], timeout_s: int, *, snapshot_id: str = "", name: str = ""
    ) -> E2bSandbox:
        """Create a sandbox, with the files of a snapshot if one is given; return the one that has the name, if any."""
        # A letter first: an id is a label of a host name.
        sandbox_id = "i" + (name or "".join(secrets.choice(_LETTERS) for _ in range(_ID_CHARS)))
        if name and (found := await self.store.get(sandbox_id)) is not None:
            return found
        thread = THREAD_PREFIX + sandbox_id
        now_us = self.store.clock()
        sandbox = E2bSandbox(
            id=sandbox_id,
            tenant=who.tenant.name,
            thread=thread,
            state=RUNNING,
            created_us=now_us,
            ends_us=now_us + timeout_s * 1_000_000,
            options=options,
            key_ids=(who.key_id,),
            secret=secrets.token_hex(32),
        )
        # A request with the same name may be under way: its sandbox is not this one's to undo.
        is_own = not name
        try:
            # The thread is there first, and so nothing is left that has no end.
            await who.client.set_thread_metadata(thread, {"e2b.template": options.get("template", "")})
            if not await self.store.add(sandbox):
                if name and (found := await self.store.get(sandbox_id)) is not None:
                    return found
                raise Unavailable("the thread of the sandbox was deleted while it was being created: try again")
            is_own = True
            if snapshot_id:
                await who.client.restore_snapshot(snapshot_id, thread=thread)
            await who.client.create_sandbox(thread)
        except BaseException:
            if is_own:
                await asyncio.shield(self._undo(sandbox, who.client))
            raise
        return sandbox

    async def _undo(self, sandbox: E2bSandbox, client: InProcessClient) -> None:
        with contextlib.suppress(AirlockError):
            await self.store.end(sandbox.id, self.store.clock())
        with contextlib.suppress(AirlockError):
            await client.delete_thread(sandbox.thread)

    async def connect(self, who: KeyHolder, sandbox_id: str, timeout_s: int) -> tuple[E2bSandbox, bool]:
        """Return a running sandbox, and whether it was resumed for that. A longer time replaces a shorter one."""
        sandbox = await self.owned(who, sandbox_id)
        ends_us = self.store.clock() + timeout_s * 1_000_000
        paused = sandbox.state == PAUSED
        if paused:
            await self.resume(who.client, sandbox, ends_us)
        else:
            await self.store.set_end(sandbox, ends_us, who.shown, later_only=True)
        await self.store.hold(sandbox, who.key_id, who.shown)
        return await self.owned(who, sandbox_id), paused

    async def resume(self, client: InProcessClient, sandbox: E2bSandbox, ends_us: int) -> None:
        """Start a paused sandbox."""
        await client.create_sandbox(sandbox.thread)
        await self.store.run(sandbox.id, ends_us)

    async def owned(self, who: KeyHolder, sandbox_id: str) -> E2bSandbox:
        """Return a sandbox of the caller's tenant; NotFound also for another tenant's."""
        sandbox = await self.store.get(sandbox_id)
        if sandbox is not None and sandbox.tenant == who.tenant.name and self._is_over(sandbox):
            await self._end_in_time(sandbox)
            sandbox = await self.store.get(sandbox_id)
        if sandbox is None or sandbox.tenant != who.tenant.name:
            raise NotFound(f"sandbox {sandbox_id[:64]!r} not found")
        return sandbox

    def _is_over(self, sandbox: E2bSandbox) -> bool:
        return sandbox.ends_us is not None and sandbox.ends_us <= self.store.clock()

    async def set_timeout(self, who: KeyHolder, sandbox_id: str, timeout_s: int) -> None:
        sandbox = await self.owned(who, sandbox_id)
        if not await self.store.set_end(sandbox, self.store.clock() + timeout_s * 1_000_000, who.shown):
            raise Conflict(f"sandbox {sandbox_id!r} is paused: connect to it to resume it")

    async def kill(self, who: KeyHolder, sandbox_id: str) -> None:
        """Delete a sandbox with everything in it, as the caller."""
        sandbox = await self.owned(who, sandbox_id)
        await self._kill(sandbox, lambda: who.client.delete_thread(sandbox.thread))

    async def _kill(self, sandbox: E2bSandbox, delete: Callable[[], Awaitable[object]]) -> None:
        await self.store.end(sandbox.id, self.store.clock() + _AGAIN_US)
        self.streams.end(sandbox.id)
        with contextlib.suppress(NotFound):  # deleted meanwhile
            await _when_free(delete)

    async def pause(self, who: KeyHolder, sandbox_id: str) -> None:
        """Stop a sandbox, as the caller; Conflict if it is paused already."""
        sandbox = await self.owned(who, sandbox_id)
        if sandbox.state == PAUSED:
            raise Conflict(f"sandbox {sandbox_id!r} is paused already")
        await self._pause(sandbox, lambda: who.client.stop_sandbox(sandbox.thread))

    async def _pause(self, sandbox: E2bSandbox, stop: Callable[[], Awaitable[object]]) -> None:
        self.streams.end(sandbox.id)
        with contextlib.suppress(NotFound):  # idle for long, and so removed; its files are there
            await _when_free(stop)
        await self.store.pause(sandbox.id)
        self.streams.end(sandbox.id)

    async def follow(self) -> None:
        """End sandboxes whose time is over, and the streams of those that another process has ended; never returns."""
        async with asyncio.TaskGroup() as ends:
            while True:
                try:
                    await self._look(ends)
                except AirlockError as error:
                    log.warning("sandboxes of E2B's SDKs whose time is over are looked for again", error=str(error))
                await asyncio.sleep(_EVERY_S)

    async def _look(self, ends: asyncio.TaskGroup) -> None:
        full = [tenant for tenant, number in self._ending.items() if number >= _ENDS_AT_ONCE]
        for sandbox in await self.store.due(_DUE_AT_ONCE, but_of=full):
            if self._ending[sandbox.tenant] < _ENDS_AT_ONCE:
                self._ending[sandbox.tenant] += 1
                ends.create_task(self._end_counted(sandbox))
        for sandbox_id in self.streams.open_sandboxes():
            try:
                over = (await self.access.sandbox(sandbox_id)).state == PAUSED
            except Gone:
                over = True
            if over:
                self.streams.end(sandbox_id)

    async def _end_counted(self, sandbox: E2bSandbox) -> None:
        try:
            await self._end_in_time(sandbox)
        finally:
            self._ending[sandbox.tenant] -= 1
            if not self._ending[sandbox.tenant]:
                del self._ending[sandbox.tenant]

    async def _end_in_time(self, sandbox: E2bSandbox) -> None:
        try:
            if not await self.store.take_due(sandbox, self.store.clock() + _AGAIN_US):
                return
            tenant = await self.tenants.named(sandbox.tenant)
            if sandbox.state == RUNNING and sandbox.options.get("on_timeout") == "pause":
                await self._pause(sandbox, lambda: self.admin.stop(tenant, sandbox.thread))
            else:
                await self._kill(sandbox, lambda: self.threads.delete(tenant, sandbox.thread))
        except Exception as error:  # of the engine too; it is tried again
            log.warning("a sandbox is not ended in time", sandbox=sandbox.id, error=str(error)[:300])


async def _when_free(end: Callable[[], Awaitable[object]]) -> None:
    """End something once no call is in progress in it. Raises SandboxBusy, ThreadBusy."""
    until_s = asyncio.get_running_loop().time() + _BUSY_S
    while True:
        try:
            await end()
        except (SandboxBusy, ThreadBusy):
            if asyncio.get_running_loop().time() >= until_s:
                raise
            await asyncio.sleep(_POLL_S)
        else:
            return
