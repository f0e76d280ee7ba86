"""Tenants, keys and policies in the Python client. Needs an operator key."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.client.messages import enum_number, message, record
from gateway.client.wire import Wire, pause
from gateway.errors import NotFound, Overloaded, Unavailable
from gateway.v1 import admin_service_pb2 as pb
from gateway.v1 import admin_service_pb2_grpc as grpc_pb


@dataclass(frozen=True)
class TenantInfo:
    """A tenant. `stored` is rows by table, of `Client.tenant` only."""

    name: str
    policy_version: str
    stored: Mapping[str, int]


@dataclass(frozen=True)
class ErasedTenant:
    """What was removed and what is left, as rows by table; and the record of it in the operators' audit."""

    removed: Mapping[str, int]
    left: Mapping[str, int]
    workspaces_removed: int
    audit_sequence: int


@dataclass(frozen=True)
class KeyInfo:
    """An API key without its secret; `tenant` is "" for an operator's."""

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
    """A key that was revoked; `runs_under_way` that it started go on, or have been asked to end with it."""

    key: KeyInfo
    runs_under_way: int


@dataclass(frozen=True)
class MadeKey:
    """A key just made; its secret is nowhere else."""

    key: KeyInfo
    secret: str


@dataclass(frozen=True)
class PolicyRule:
    """A rule of a layer. `enforcement` is kernel, gateway or reading; `group` is "" for a rule of none."""

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
    """A layer of policy came into force: by `apply`, `rollback` or `file`. `tenant` is "" for the operator's layer."""

    tenant: str
    version: str
    kind: str
    by: str
    comment: str
    at: datetime


class AdminCalls(Wire):
    """The calls of AdminService. ScopeMissing where the key is not an operator's."""

    @property
    def _admin(self) -> Any:
        return self._stub(grpc_pb.AdminServiceStub)

    async def tenants(self) -> AsyncIterator[TenantInfo]:
        """Yield the tenants of the configuration, by name."""
        async for one in self._listed(self._admin.ListTenants, pb.ListTenantsRequest, "tenants"):
            yield record(TenantInfo, one)

    async def tenant(self, name: str) -> TenantInfo:
        """Return a tenant and what is stored of it; NotFound."""
        return record(TenantInfo, (await self._ask(self._admin.GetTenant, pb.GetTenantRequest, tenant=name)).tenant)

    async def delete_tenant_data(self, name: str, *, audit: bool = False) -> ErasedTenant:
        """Remove all that is stored of a tenant, its audit too where asked. StillConfigured, NotFound."""
        delete = self._admin.DeleteTenantData
        return record(ErasedTenant, await self._ask(delete, pb.DeleteTenantDataRequest, tenant=name, audit=audit))

    async def create_key(
        self,
        tenant: str,
        *,
        scopes: Collection[str] = (),
        name: str = "",
        expires_in_s: int = 0,
        request_id: str = "",
    ) -> MadeKey:
        """Make a key of a tenant, or of an operator with "". Without scopes it has the usual ones; 0 s: for ever.

        One key is made, however often a broken connection makes the client ask. With a `request_id` of your own you may
        ask again within 10 minutes, and get the same key with another secret; Conflict once it was used.
        """
        made = await self._ask(
            self._admin.CreateKey,
            pb.CreateKeyRequest,
            tenant=tenant,
            scopes=list(scopes),
            name=name,
            expires_in_s=expires_in_s,
            request_id=request_id or str(uuid.uuid4()),
        )
        return MadeKey(record(KeyInfo, made.key), made.secret)

    async def keys(
        self, tenant: str = "", *, include_ended: bool = False, scope: str = "", state: str = ""
    ) -> AsyncIterator[KeyInfo]:
        """Yield keys, the newest first: of a tenant, or of all; `include_ended`: also revoked and expired ones.

        `scope`: only those that have it; `state`: only those that are working, expired or revoked.
        """
        async for one in self._listed(
            self._admin.ListKeys,
            pb.ListKeysRequest,
            "keys",
            tenant=tenant,
            include_ended=include_ended,
            scope=scope,
            state=enum_number(pb.KeyState, state, "state") if state else 0,
        ):
            yield record(KeyInfo, one)

    async def revoke_key(self, key_id: str, *, cancel_runs: bool = False) -> RevokedKey:
        """Revoke a key within a second; its runs continue unless `cancel_runs` is set. Raises NotFound."""
        revoke = self._admin.RevokeKey
        revoked = await self._ask(revoke, pb.RevokeKeyRequest, key_id=key_id, cancel_runs=cancel_runs)
        return RevokedKey(record(KeyInfo, revoked.key), revoked.runs_under_way)

    async def rotate_key(self, key_id: str, *, overlap_s: int = 0, request_id: str = "") -> MadeKey:
        """Make a key like another one, which works for `overlap_s` more; 0 means 24 hours. NotFound.

        `request_id`: as `create_key` has it.
        """
        rotate, asked = self._admin.RotateKey, request_id or str(uuid.uuid4())
        made = await self._ask(rotate, pb.RotateKeyRequest, key_id=key_id, overlap_s=overlap_s, request_id=asked)
        return MadeKey(record(KeyInfo, made.key), made.secret)

    async def policy(self, tenant: str, version: str = "") -> PolicyText:
        """Return a tenant's layer of policy, or the operator's with "": in force, or of a version. NotFound."""
        get = self._admin.GetPolicy
        found = await self._ask(get, pb.GetPolicyRequest, tenant=tenant, version=version)
        return record(PolicyText, found, rules=tuple(record(PolicyRule, rule) for rule in found.rules))

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
        request = message(
            pb.ApplyPolicyRequest,
            tenant=tenant,
            text=text,
            version=version,
            comment=comment,
            check_only=check_only,
            expected_version=expected_version,
        )
        before = await self._version_in_force(tenant) if expected_version is None and self._retry else None
        attempts = self._attempts()
        while True:
            try:
                return str((await self._unary(self._admin.ApplyPolicy, request)).version)
            except (Unavailable, Overloaded) as error:
                await pause(attempts.pause_s(error), None, error)
                if before is not None and isinstance(error, Unavailable):
                    request.expected_version = before

    async def _version_in_force(self, tenant: str) -> str:
        """Return the version of a layer, "" where nothing was ever applied, or there is no such tenant."""
        try:
            return (await self.policy(tenant)).version
        except NotFound:
            return ""

    async def policy_changes(self, tenant: str) -> AsyncIterator[PolicyChange]:
        """Yield what was in force, the newest first."""
        changes = self._listed(self._admin.ListPolicyChanges, pb.ListPolicyChangesRequest, "changes", tenant=tenant)
        async for one in changes:
            yield record(PolicyChange, one)
