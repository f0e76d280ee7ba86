"""SandboxService over the engine and the keeper: sandboxes of a tenant, whichever gateway of the engine made them."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.errors import NotFound
from gateway.identity.presented import Context
from gateway.identity.principal import actor
from gateway.paging import page_size, paged, place_of
from gateway.serving.edge import Authenticator, unary
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.tenants import Tenant
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb
from sandbox.engine import Engine, LiveSandbox
from sandbox.sandbox_keeper import SandboxKeeper


class SandboxService(grpc_pb.SandboxServiceServicer):
    """Looks after sandboxes."""

    scope = "tool"

    def __init__(self, engine: Engine, keeper: SandboxKeeper, audit: AuditStore, authenticate: Authenticator) -> None:
        self._engine = engine
        self._keeper = keeper
        self._audit = audit
        self.authenticate = authenticate

    @unary
    async def ListSandboxes(  # noqa: N802
        self, tenant: Tenant, request: pb.ListSandboxesRequest, context: Context
    ) -> pb.ListSandboxesResponse:
        """List the sandboxes that live, by id, a page at a time."""
        del context
        size = page_size(request.page_size)
        query = ("sandboxes", tenant.name, request.runtime, request.image)
        after = place_of(request.page_token, *query)
        found = [
            one
            for one in await self._engine.live(tenant.name)
            if (after is None or one.id > after[1])
            and request.runtime in ("", one.runtime)
            and request.image in ("", one.image)
        ]
        shown, token = paged(found, size, lambda one: (0, one.id), *query)
        return pb.ListSandboxesResponse(sandboxes=[self._message(tenant, one) for one in shown], next_page_token=token)

    @unary
    async def GetSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.GetSandboxRequest, context: Context
    ) -> pb.GetSandboxResponse:
        """Return the sandbox of a thread."""
        del context
        thread = _thread(request.thread)
        found = next((one for one in await self._engine.live(tenant.name) if one.thread == thread), None)
        if found is None:
            raise _none(thread)
        return pb.GetSandboxResponse(sandbox=self._message(tenant, found))

    @unary
    async def StopSandbox(  # noqa: N802
        self, tenant: Tenant, request: pb.StopSandboxRequest, context: Context
    ) -> pb.StopSandboxResponse:
        """Remove the sandbox of a thread, whichever gateway has it."""
        del context
        thread = _thread(request.thread)
        was = await self._engine.stop(tenant.name, thread)
        if was is None:
            raise _none(thread)
        entry = AuditEntry(
            tenant=tenant.name, kind="sandbox_stopped", actor=actor(), thread=thread, details={"sandbox": was.id}
        )
        await self._audit.write(entry)
        return pb.StopSandboxResponse(sandbox=self._message(tenant, was))

    def _message(self, tenant: Tenant, one: LiveSandbox) -> pb.Sandbox:
        created = Timestamp()
        created.FromSeconds(int(one.created_s))
        calls = self._keeper.users(tenant.name, one.thread)
        return pb.Sandbox(
            id=one.id, thread=one.thread, image=one.image, runtime=one.runtime, created_at=created, calls=calls
        )


def _thread(name: str) -> str:
    return name or "default"


def _none(thread: str) -> NotFound:
    return NotFound(f"thread {thread!r} has no sandbox now; its next call makes one, with the files as they were")
