"""Tenants, keys and policies in the Python client. Needs an operator key."""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airlock.errors import NotFound, Unavailable
from airlock.messages import Fields, message, reader, record
from airlock.v1 import admin_service_pb2 as pb
from airlock.wire import Wire


@dataclass(frozen=True)
class TenantInfo:
    """A tenant. `stored` is the number of rows by table; lists omit it."""

    name: str
    policy_version: str
    stored: Mapping[str, int]


@dataclass(frozen=True)
class ErasedTenant:
    """What was removed and what is left, as rows by table, and the number of its record in the operators' audit."""

    removed: Mapping[str, int]
    left: Mapping[str, int]
    workspaces_removed: int
    audit_sequence: int


@dataclass(frozen=True)
class KeyInfo:
    """An API key without its secret; `tenant` is "" for an operator key."""

    id: str
    tenant: str
    shown: str
    scopes: tuple[str, ...]
    name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    replaced_by: str


@dataclass(frozen=True)
class RevokedKey:
    """A revoked key; `runs_under_way` that it started continue, or are being cancelled."""

    key: KeyInfo
    runs_under_way: int


@dataclass(frozen=True)
class MadeKey:
    """A new key; its secret is stored nowhere else."""

    key: KeyInfo
    secret: str


@dataclass(frozen=True)
class PolicyRule:
    """A rule of a layer. `enforcement` is kernel, gateway or reading; `group` may be ""."""

    id: str
    effect: str
    enforcement: str
    group: str


@dataclass(frozen=True)
class PolicyText:
    """A layer of policy: YAML, its version, and what enforces each of its rules."""

    text: str
    version: str
    rules: tuple[PolicyRule, ...]


@dataclass(frozen=True)
class PolicyChange:
    """A layer of policy came into force: by `apply`, `rollback` or `file`. `tenant` is "" for the operator's layer.

    `digest` is that of the text; the `version` of one that no longer loads is its digest.
    """

    tenant: str
    version: str
    kind: str
    by: str
    comment: str
    at: datetime
    digest: str


@dataclass(frozen=True)
class McpTool:
    """A tool of an MCP server. `status` is pinned, changed, new or gone."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    digest: str
    status: str


@dataclass(frozen=True)
class McpServerPins:
    """What was seen of an MCP server of an agent, and whether it was accepted: `status` is pinned, changed or new.

    `digest` is that of all tools it showed last; `left_out` says which tools cannot be offered, and why.
    """

    agent: str
    server: str
    status: str
    digest: str
    tools: tuple[McpTool, ...]
    left_out: tuple[str, ...]
    accepted_by: str
    seen_at: datetime | None
    accepted_at: datetime | None


class AdminCalls(Wire):
    """The calls of AdminService. Raises ScopeMissing if the key is not an operator's."""

    def tenants(self) -> AsyncIterator[TenantInfo]:
        """Yield the tenants of the configuration, by name."""
        return self._listed(reader(TenantInfo), pb.ListTenantsRequest, "tenants")

    async def tenant(self, name: str) -> TenantInfo:
        """Return a tenant and the amount of its stored data. Raises NotFound."""
        return record(TenantInfo, (await self._ask(pb.GetTenantRequest, tenant=name)).tenant)

    async def delete_tenant_data(self, name: str, *, audit: bool = False) -> ErasedTenant:
        """Delete all data of a tenant, with `audit` also its audit records. Raises StillConfigured, NotFound."""
        return record(ErasedTenant, await self._ask(pb.DeleteTenantDataRequest, tenant=name, audit=audit))

    async def create_key(
        self, tenant: str, *, scopes: Collection[str] = (), name: str = "", expires_in_s: int = 0, request_id: str = ""
    ) -> MadeKey:
        """Create a key of a tenant, or of an operator with "". No scopes means the usual ones; 0 s is unlimited.

        A repeated request gets the same key with another secret, within 10 minutes; Conflict once the key was used.
        """
        asked: Fields = {"scopes": list(scopes), "name": name, "expires_in_s": expires_in_s, "request_id": request_id}
        return record(MadeKey, await self._ask(pb.CreateKeyRequest, tenant=tenant, **asked))

    def keys(
        self, tenant: str = "", *, include_ended: bool = False, scope: str = "", state: str = ""
    ) -> AsyncIterator[KeyInfo]:
        """Yield the keys of a tenant, or all keys, newest first; with `include_ended` also revoked and expired ones.

        `scope` and `state` (working, expired, revoked) filter them.
        """
        wanted: Fields = {"tenant": tenant, "include_ended": include_ended, "scope": scope, "state": state or 0}
        return self._listed(reader(KeyInfo), pb.ListKeysRequest, "keys", **wanted)

    async def revoke_key(self, key_id: str, *, cancel_runs: bool = False) -> RevokedKey:
        """Revoke a key within a second; its runs continue unless `cancel_runs` is set. Raises NotFound."""
        return record(RevokedKey, await self._ask(pb.RevokeKeyRequest, key_id=key_id, cancel_runs=cancel_runs))

    async def rotate_key(self, key_id: str, *, overlap_s: int = 0, request_id: str = "") -> MadeKey:
        """Create a replacement for a key, which works for another `overlap_s`; 0 means 24 hours. Raises NotFound.

        `request_id` is as for `create_key`.
        """
        asked: Fields = {"overlap_s": overlap_s, "request_id": request_id}
        return record(MadeKey, await self._ask(pb.RotateKeyRequest, key_id=key_id, **asked))

    async def policy(self, tenant: str, version: str = "") -> PolicyText:
        """Return a version of a tenant's layer of policy, or of the operator's with "". Raises NotFound.

        Without a version, the one in force.
        """
        return record(PolicyText, await self._ask(pb.GetPolicyRequest, tenant=tenant, version=version))

    async def apply_policy(
        self,
        tenant: str,
        text: str = "",
        *,
        version: str = "",
        comment: str = "",
        check_only: bool = False,
        expected_version: str | None = None,
    ) -> str:
        """Put a text, or an earlier version, in force and return its version. PolicyInvalid lists `problems`.

        With `expected_version`, raises PolicyChanged if another version is in force, `details["version"]`; "" expects
        that none ever was. Without it, any version is replaced; after a broken connection the client repeats the call
        only while the version from before the call is in force, and otherwise raises PolicyChanged.
        """
        asked: Fields = {"text": text, "version": version, "comment": comment, "check_only": check_only}
        request = message(pb.ApplyPolicyRequest, tenant=tenant, expected_version=expected_version, **asked)
        before = await self._version_in_force(tenant) if expected_version is None and self._retry else None

        async def once(_: float | None) -> str:
            try:
                return str((await self._unary(self._method(pb.ApplyPolicyRequest), request)).version)
            except Unavailable:
                if before is not None:
                    request.expected_version = before
                raise

        return await self._again(once)

    async def _version_in_force(self, tenant: str) -> str:
        """Return the version of a layer, "" if none was ever applied or there is no such tenant."""
        try:
            return (await self.policy(tenant)).version
        except NotFound:
            return ""

    def policy_changes(self, tenant: str, *, limit: int | None = None) -> AsyncIterator[PolicyChange]:
        """Yield the versions that were in force, newest first, at most `limit`."""
        return self._listed(reader(PolicyChange), pb.ListPolicyChangesRequest, "changes", limit=limit, tenant=tenant)

    async def mcp_pins(self, tenant: str, *, agent: str = "", server: str = "") -> tuple[McpServerPins, ...]:
        """Return what was seen of the MCP servers of a tenant's agents. Raises NotFound."""
        found = await self._ask(pb.ListMcpPinsRequest, tenant=tenant, agent=agent, server=server)
        return tuple(record(McpServerPins, one) for one in found.servers)

    async def accept_mcp_pins(self, tenant: str, server: str, digest: str, *, agent: str = "default") -> McpServerPins:
        """Accept the tools that a server showed last. Raises NotFound, and PinsChanged if it shows others by now."""
        asked: Fields = {"tenant": tenant, "agent": agent, "server": server, "digest": digest}
        return record(McpServerPins, (await self._ask(pb.AcceptMcpPinsRequest, **asked)).server)

    async def remove_mcp_pins(self, tenant: str, server: str, *, agent: str = "default") -> McpServerPins:
        """Forget what was accepted and seen of a server, and return it. Raises NotFound."""
        asked: Fields = {"tenant": tenant, "agent": agent, "server": server}
        return record(McpServerPins, (await self._ask(pb.RemoveMcpPinsRequest, **asked)).server)
