"""A thread's sandbox, made ahead of its calls, stopped, and removed with its files: each with its audit record."""

from __future__ import annotations

import structlog

from agent.cancellation import to_the_end
from gateway.calls.tool_calls import ToolCalls
from gateway.erasure import remove_files_of
from gateway.errors import NotFound, ThreadBusy, Unavailable
from gateway.identity.principal import actor
from gateway.storage.audit_store import AuditEntry
from gateway.storage.thread_store import ThreadStore
from gateway.tenants import Tenant
from sandbox.engine import Engine, LiveSandbox

log = structlog.get_logger(__name__)


class TendedSandboxes:
    """The sandboxes of every tenant, as it looks after them itself. Names of threads are whole: "" is none."""

    def __init__(self, engine: Engine, tool_calls: ToolCalls, threads: ThreadStore) -> None:
        self._engine = engine
        self._tool_calls = tool_calls
        self._threads = threads
        self._remove_files = remove_files_of(engine)

    async def find(self, tenant: Tenant, thread: str) -> LiveSandbox | None:
        """Return the sandbox of a thread, whichever gateway of the engine has it; None where none lives."""
        return next((one for one in await self._engine.live(tenant.name) if one.thread == thread), None)

    async def get(self, tenant: Tenant, thread: str) -> LiveSandbox:
        """Return the sandbox of a thread; NotFound where none lives."""
        found = await self.find(tenant, thread)
        if found is None:
            raise no_sandbox(thread)
        return found

    async def create(self, tenant: Tenant, thread: str) -> LiveSandbox:
        """Return the sandbox of a thread, made or started again as for a call where none lives.

        Raises QuotaExceeded, OtherEngine, and SandboxError where there can be none.
        """
        sandbox = await self._tool_calls.sandbox(tenant, thread)
        await self._tool_calls.take_place(tenant)
        before = await self.find(tenant, thread)
        stopped = None if before is not None else self._engine.stopped(tenant.sandbox_spec(thread))

        async def made() -> LiveSandbox:
            sandbox_id = await sandbox.prepare()
            found = await self.find(tenant, thread)
            if found is None:
                raise Unavailable("the sandbox was made and is gone again: it was stopped, or made room; ask again")
            if before is None or before.id != sandbox_id:
                details = {"sandbox": sandbox_id, "image": found.image, "runtime": found.runtime}
                kind = "sandbox_resumed" if stopped == sandbox_id else "sandbox_created"
                await self._tell(tenant, kind, thread, **details)
            return found

        # Whoever goes away has it made all the same, for what is made has its record.
        return await to_the_end(made())

    async def resume(self, tenant: Tenant, thread: str) -> LiveSandbox:
        """Return the sandbox of a thread, started where it was stopped for being idle; NotFound where there is none."""
        if self._engine.stopped(tenant.sandbox_spec(thread)) is None:
            return await self.get(tenant, thread)
        return await self.create(tenant, thread)

    async def stop(self, tenant: Tenant, thread: str) -> LiveSandbox | None:
        """Remove the sandbox of a thread, whichever gateway has it; None where none lives. Its files stay.

        SandboxBusy while calls are under way in it.
        """

        async def stopped() -> LiveSandbox | None:
            was = await self._engine.stop(tenant.name, thread)
            if was is not None:
                await self._tell(tenant, "sandbox_stopped", thread, sandbox=was.id)
            return was

        return await to_the_end(stopped())

    async def delete(self, tenant: Tenant, thread: str) -> tuple[LiveSandbox | None, bool]:
        """Remove the sandbox of a thread and its files for good; return it as it was, and whether there were files.

        Raises ThreadBusy while a run is under way in the thread, SandboxBusy while a call is, and NotFound.
        """
        row = await self._threads.get(tenant.name, thread)
        if row is None:
            raise _nothing(thread)
        if row.run_id is not None:
            raise ThreadBusy(
                f"the run {row.run_id} is under way in thread {thread!r}: wait for it or cancel it", run_id=row.run_id
            )
        await self._tool_calls.thread(tenant, thread)  # OtherEngine, where its files are on one
        was = await self.stop(tenant, thread)

        async def removed() -> bool:
            there = await self._remove_files(tenant.name, thread)
            if there:
                await self._tell(tenant, "workspace_removed", thread)
            return there

        files = await to_the_end(removed())
        if was is None and not files:
            raise _nothing(thread)
        return was, files

    async def _tell(self, tenant: Tenant, kind: str, thread: str, **details: str) -> None:
        log.info(kind, tenant=tenant.name, thread=thread, **details)
        entry = AuditEntry(tenant=tenant.name, kind=kind, actor=actor(), thread=thread, details=dict(details))
        await self._tool_calls.audit.write(entry)


def no_sandbox(thread: str) -> NotFound:
    """Return the error of a thread in which no sandbox lives."""
    return NotFound(f"thread {thread!r} has no sandbox now; its next call makes one, with the files as they were")


def _nothing(thread: str) -> NotFound:
    return NotFound(f"thread {thread!r} has neither a sandbox nor files here: there is nothing to remove")
