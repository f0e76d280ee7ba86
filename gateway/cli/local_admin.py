"""The client's calls of AdminService on the database of a configuration, without a gateway and without a key."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from structlog.testing import capture_logs

from airlock.admin import AdminCalls
from gateway.cli.database import local_database, opened_policies
from gateway.config.config import Config
from gateway.credentials.caller import CALLER, Caller
from gateway.data_lifecycle.erasure import TenantAdmin
from gateway.mcp_servers.pins import PinAdmin
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.services.admin_service import AdminService
from gateway.serving.request_checks import check
from gateway.storage.key_store import KeyStore
from gateway.storage.mcp_pin_store import McpPinStore

# Nothing authenticates, and only a gateway erases tenants, because that needs their workspaces.
_ABSENT = cast(Any, None)


class LocalAdmin(AdminCalls):
    """Calls a servicer in this process, past the edge that asks for a credential."""

    def __init__(self, service: AdminService) -> None:
        super().__init__("in this process", retry=None)
        self._service = service

    def _method(self, kind: type) -> Any:
        name = kind.DESCRIPTOR.name.removesuffix("Request")  # type: ignore[attr-defined]
        answer = getattr(AdminService, name).__wrapped__

        async def method(request: Any, **_: object) -> Any:
            check(request)
            return await answer(self._service, None, request)

        return method


@contextlib.asynccontextmanager
async def local_admin(config: Config, by: str) -> AsyncIterator[LocalAdmin]:
    """Open the calls, which are recorded as those of `by`."""
    async with local_database(config, create=True) as database, opened_policies(database) as policies:
        tenants = TenantAdmin(config, policies, database, erasure=_ABSENT)
        pins = PinAdmin(config, McpPinStore(database))
        service = AdminService(tenants, KeyStore(database), PolicyAdmin(config, policies), pins, authenticate=_ABSENT)
        caller = CALLER.set(Caller(shown=by))
        try:
            with capture_logs():  # only `airlock serve` has a log
                yield LocalAdmin(service)
        finally:
            CALLER.reset(caller)
