"""AdminService: what operators do with tenants, policies and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.credentials.caller import actor
from gateway.credentials.keys import ACTING_SCOPES, OPERATOR_SCOPES, make_key
from gateway.errors import InvalidArgument
from gateway.identity.call_credentials import Context
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.services.admin_messages import change_message, key_message
from gateway.serving.edge import Authenticator, unary
from gateway.storage.key_store import KEY_EXPIRED, KEY_REVOKED, WORKING, KeyRequest, KeyStore
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenant_admin import TenantAdmin
from gateway.tenancy.tenants import Tenant
from gateway.v1 import admin_service_pb2 as pb
from gateway.v1 import admin_service_pb2_grpc as grpc_pb

_S = 1_000_000
_OVERLAP_S, _OVERLAP_LIMIT_S = 86_400, 30 * 86_400
_LIFETIME_LIMIT_S = 10 * 366 * 86_400
_STATES: Mapping[int, str] = {
    pb.KEY_STATE_WORKING: WORKING,
    pb.KEY_STATE_EXPIRED: KEY_EXPIRED,
    pb.KEY_STATE_REVOKED: KEY_REVOKED,
}


@dataclass(frozen=True)
class Administration:
    """What the service is about."""

    tenants: TenantAdmin
    keys: KeyStore
    policies: PolicyAdmin


class AdminService(grpc_pb.AdminServiceServicer):
    """Serves operators, whose credential belongs to no tenant."""

    scope = "operate"
    for_operators = True

    def __init__(self, administration: Administration, authenticate: Authenticator) -> None:
        self._tenants = administration.tenants
        self._keys = administration.keys
        self._policies = administration.policies
        self.authenticate = authenticate

    # --- tenants ---

    @unary
    async def ListTenants(  # noqa: N802
        self, _: Tenant | None, request: pb.ListTenantsRequest, context: Context
    ) -> pb.ListTenantsResponse:
        """List tenants, a page at a time."""
        del context
        size = page_size(request.page_size)
        place = place_of(request.page_token, "tenants")
        found = await self._tenants.page(size, place[1] if place else "")
        shown, token = paged(found, size, lambda one: (0, one.name), "tenants")
        tenants = [pb.Tenant(name=one.name, policy_version=one.policy_version) for one in shown]
        return pb.ListTenantsResponse(tenants=tenants, next_page_token=token)

    @unary
    async def GetTenant(  # noqa: N802
        self, _: Tenant | None, request: pb.GetTenantRequest, context: Context
    ) -> pb.GetTenantResponse:
        """Return a tenant, and what is stored of it."""
        del context
        found, stored = await self._tenants.get(request.tenant)
        return pb.GetTenantResponse(
            tenant=pb.Tenant(name=found.name, policy_version=found.policy_version, stored=stored)
        )

    @unary
    async def DeleteTenantData(  # noqa: N802
        self, _: Tenant | None, request: pb.DeleteTenantDataRequest, context: Context
    ) -> pb.DeleteTenantDataResponse:
        """Remove all that is stored of a tenant."""
        del context
        erased = await self._tenants.delete(request.tenant, audit=request.audit, by=actor())
        return pb.DeleteTenantDataResponse(
            removed=erased.removed,
            left=erased.left,
            workspaces_removed=erased.workspaces_removed,
            audit_sequence=erased.audit_sequence,
        )

    # --- keys ---

    @unary
    async def CreateKey(  # noqa: N802
        self, _: Tenant | None, request: pb.CreateKeyRequest, context: Context
    ) -> pb.CreateKeyResponse:
        """Make a key."""
        del context
        operator = not request.tenant
        if not operator:
            self._tenants.check(request.tenant)
        if not 0 <= request.expires_in_s <= _LIFETIME_LIMIT_S:
            raise InvalidArgument(f"expires_in_s: 1 to {_LIFETIME_LIMIT_S:,}, or 0 for never")
        key = make_key(request.scopes or (OPERATOR_SCOPES if operator else ACTING_SCOPES), operator=operator)
        stored = await self._keys.add_requested(
            request.tenant,
            key,
            name=request.name,
            lifetime_us=request.expires_in_s * _S or None,
            by=actor(),
            request=KeyRequest.of(
                request.request_id,
                actor(),
                *("create", request.tenant, ",".join(key.scopes), request.name, request.expires_in_s),
            ),
        )
        return pb.CreateKeyResponse(key=key_message(stored), secret=key.secret)

    @unary
    async def ListKeys(  # noqa: N802
        self, _: Tenant | None, request: pb.ListKeysRequest, context: Context
    ) -> pb.ListKeysResponse:
        """List keys, a page at a time."""
        del context
        size = page_size(request.page_size)
        query = ("keys", request.tenant, request.include_ended, request.scope, request.state)
        found = await self._keys.list(
            request.tenant or None,
            include_ended=request.include_ended,
            limit=size + 1,
            before=place_of(request.page_token, *query),
            scope=request.scope,
            state=_STATES.get(request.state, ""),
        )
        shown, token = paged(found, size, lambda key: (key.created_us, key.id), *query)
        return pb.ListKeysResponse(keys=[key_message(key) for key in shown], next_page_token=token)

    @unary
    async def RevokeKey(  # noqa: N802
        self, _: Tenant | None, request: pb.RevokeKeyRequest, context: Context
    ) -> pb.RevokeKeyResponse:
        """Make a key useless."""
        del context
        key = await self._keys.revoke(request.key_id, by=actor())
        if request.cancel_runs:
            under_way = await self._keys.runs.cancel(key.tenant, key.shown, by=actor())
        else:
            under_way = await self._keys.runs.count(key.tenant, key.shown)
        return pb.RevokeKeyResponse(key=key_message(key), runs_under_way=under_way)

    @unary
    async def RotateKey(  # noqa: N802
        self, _: Tenant | None, request: pb.RotateKeyRequest, context: Context
    ) -> pb.RotateKeyResponse:
        """Make a key like another one."""
        del context
        if not 0 <= request.overlap_s <= _OVERLAP_LIMIT_S:
            raise InvalidArgument(f"overlap_s: 1 to {_OVERLAP_LIMIT_S:,}, or 0 for {_OVERLAP_S:,}")
        overlap_us = (request.overlap_s or _OVERLAP_S) * _S
        asked = KeyRequest.of(request.request_id, actor(), "rotate", request.key_id, request.overlap_s)
        new, key = await self._keys.rotate(request.key_id, overlap_us=overlap_us, by=actor(), request=asked)
        return pb.RotateKeyResponse(key=key_message(new), secret=key.secret)

    # --- policies ---

    @unary
    async def GetPolicy(  # noqa: N802
        self, _: Tenant | None, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        """Return a layer."""
        del context
        text, version = await self._policies.read(request.tenant, request.version)
        return pb.GetPolicyResponse(text=text, version=version)

    @unary
    async def ApplyPolicy(  # noqa: N802
        self, _: Tenant | None, request: pb.ApplyPolicyRequest, context: Context
    ) -> pb.ApplyPolicyResponse:
        """Put a layer in force."""
        del context
        version = await self._policies.apply(
            request.tenant,
            text=request.text,
            version=request.version,
            comment=request.comment,
            by=actor(),
            check_only=request.check_only,
            expected_version=request.expected_version if request.HasField("expected_version") else None,
        )
        return pb.ApplyPolicyResponse(version=version)

    @unary
    async def ListPolicyChanges(  # noqa: N802
        self, _: Tenant | None, request: pb.ListPolicyChangesRequest, context: Context
    ) -> pb.ListPolicyChangesResponse:
        """List what was in force, a page at a time."""
        del context
        size = page_size(request.page_size)
        found = await self._policies.history(request.tenant, size=size, token=request.page_token)
        shown, token = paged(found, size, lambda one: (one[0].id, ""), request.tenant)
        return pb.ListPolicyChangesResponse(
            changes=[change_message(change, version) for change, version in shown], next_page_token=token
        )
