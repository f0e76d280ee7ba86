"""Creates a thread's sandbox ahead of its calls, stops it, and removes it with its files, each with its audit entry."""

import shlex

import structlog

from agent.cancellation import to_the_end
from gateway.credentials.caller import actor
from gateway.data_lifecycle.erasure import remove_files
from gateway.errors import NotFound, Unavailable
from gateway.storage.audit_store import AuditEntry
from gateway.storage.thread_store import ThreadStore, busy_with, no_thread
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import ToolCalls
from sandbox.engines.engine import Engine
from sandbox.keeper.sandbox_keeper import SandboxKeeper
from sandbox.sandbox import ListedSandbox

log = structlog.get_logger(__name__)


class SandboxAdmin:
    """The sandboxes of every tenant, for their tenants. Thread names are exact: "" is not a default."""

    def __init__(self, engine: Engine, keeper: SandboxKeeper, tool_calls: ToolCalls, threads: ThreadStore) -> None:
        self._engine = engine
        self._keeper = keeper
        self._tool_calls = tool_calls
        self._threads = threads

    async def find(self, tenant: Tenant, thread: str) -> ListedSandbox | None:
        """Return the sandbox of a thread in any state, on any gateway of the engine; None if there is none."""
        return next((one for one in await self._engine.listed(tenant.name) if one.thread == thread), None)

    async def get(self, tenant: Tenant, thread: str) -> ListedSandbox:
        """Return the sandbox of a thread in any state; NotFound if there is none."""
        found = await self.find(tenant, thread)
        if found is None:
            raise await self.missing(tenant, thread)
        return found

    async def missing(self, tenant: Tenant, thread: str) -> NotFound:
        """Return the error for a thread without a sandbox, or without a running one."""
        found = await self.find(tenant, thread)
        if found is not None and found.state == "idle_stopped":
            return NotFound(
                f"the sandbox of thread {thread!r} is stopped: run `airlock sandbox resume {shlex.quote(thread)}"
                "`, or make a call in the thread"
            )
        if await self._threads.get(tenant.name, thread) is None:
            return no_thread(thread)
        return NotFound(f"thread {thread!r} has no sandbox; its next call creates one with the same files")

    async def create(self, tenant: Tenant, thread: str) -> ListedSandbox:
        """Return the sandbox of a thread, created or started as for a call.

        Raises QuotaExceeded, OtherEngine, and SandboxError if there can be none.
        """
        await self._tool_calls.take_place(tenant)
        sandbox = await self._tool_calls.sandbox(tenant, thread)
        before = await self._living(tenant, thread)
        stopped = None if before is not None else self._engine.stopped(tenant.sandbox_spec(thread))

        async def made() -> ListedSandbox:
            sandbox_id = await sandbox.prepare()
            found = await self._living(tenant, thread)
            if found is None:
                raise Unavailable("the sandbox was created and already stopped or replaced: try again")
            if before is None or before.id != sandbox_id:
                details = {"sandbox": sandbox_id, "image": found.image, "runtime": found.runtime}
                kind = "sandbox_resumed" if stopped == sandbox_id else "sandbox_created"
                await self._record(_entry(tenant, kind, thread, **details))
            return found

        # Completed even if the caller goes away, so that the sandbox has its audit entry.
        return await to_the_end(made())

    async def resume(self, tenant: Tenant, thread: str) -> ListedSandbox:
        """Return the sandbox of a thread, started if it was stopped; NotFound if there is none."""
        found = await self.get(tenant, thread)
        return found if found.state == "running" else await self.create(tenant, thread)

    async def stop(self, tenant: Tenant, thread: str) -> ListedSandbox | None:
        """Stop the sandbox of a thread, on any gateway, and return it as it is then; None if there is none.

        Its next call starts it again. A stopped one stays stopped; one that cannot be stopped, or must not be, is
        removed. SandboxBusy while it has calls, QuotaExceeded beyond `tool_calls_per_minute`, since restarting costs
        the engine as much as creating.
        """
        await self._tool_calls.take_place(tenant, only_ends=True)

        async def stopped() -> ListedSandbox | None:
            before = self._engine.stopped(tenant.sandbox_spec(thread))
            found = await self._keeper.stop(tenant.name, thread)
            if found is not None and (found.id != before or found.state != "idle_stopped"):
                kind = "sandbox_stopped" if found.state == "idle_stopped" else "sandbox_removed"
                await self._record(_entry(tenant, kind, thread, sandbox=found.id))
            return found

        return await to_the_end(stopped())

    async def delete(self, tenant: Tenant, thread: str) -> tuple[ListedSandbox | None, bool]:
        """Remove the sandbox of a thread and its files; return it as it was, and whether there were files.

        Raises ThreadBusy during a run in the thread, SandboxBusy during a call, NotFound, QuotaExceeded.
        """
        row = await self._threads.get(tenant.name, thread)
        if row is None:
            raise _nothing(thread)
        if row.run_id is not None:
            raise busy_with(thread, row.run_id)
        await self._tool_calls.thread(tenant, thread)  # OtherEngine, if its files are on another engine
        await self._tool_calls.take_place(tenant, only_ends=True)

        async def removed() -> tuple[ListedSandbox | None, bool]:
            was = await self._engine.remove_of(tenant.name, thread)
            done: list[AuditEntry] = []
            there = False
            try:
                if was is not None:
                    done.append(_entry(tenant, "sandbox_removed", thread, sandbox=was.id))
                there = await remove_files(self._engine, tenant.name, thread)
                if there:
                    done.append(_entry(tenant, "workspace_removed", thread))
            finally:
                await self._record(*done)
            return was, there

        was, files = await to_the_end(removed())
        if was is None and not files:
            raise _nothing(thread)
        return was, files

    def ends_s(self, tenant: Tenant, one: ListedSandbox) -> float | None:
        """Return when an idle sandbox is stopped, or a stopped one removed, in seconds since 1970; None for never."""
        return self._keeper.ends_s(one, tenant.sandbox_spec(one.thread))

    async def _living(self, tenant: Tenant, thread: str) -> ListedSandbox | None:
        found = await self.find(tenant, thread)
        return found if found is not None and found.state == "running" else None

    async def _record(self, *done: AuditEntry) -> None:
        for entry in done:
            log.info(entry.kind, tenant=entry.tenant, thread=entry.thread, **entry.details)
        if done:
            await self._tool_calls.record(*done)


def _entry(tenant: Tenant, kind: str, thread: str, **details: str) -> AuditEntry:
    return AuditEntry(tenant=tenant.name, kind=kind, actor=actor(), thread=thread, details=dict(details))


def _nothing(thread: str) -> NotFound:
    return NotFound(f"thread {thread!r} has no sandbox and no files here, so there is nothing to remove")
