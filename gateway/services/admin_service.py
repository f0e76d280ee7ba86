"""AdminService: tenants, policies and keys, for operators."""

import json
from dataclasses import dataclass

from airlock.v1 import admin_service_pb2 as pb
from gateway.credentials.caller import actor
from gateway.credentials.keys import ACTING_SCOPES, OPERATOR_SCOPES, make_key
from gateway.data_lifecycle.erasure import TenantAdmin
from gateway.errors import InvalidArgument
from gateway.mcp_servers.pins import PinAdmin, PinnedServer
from gateway.policy_versions.policy_admin import PolicyAdmin
from gateway.services.messages import message, name_of, timestamp
from gateway.serving.edge import Authenticator, unary
from gateway.storage.key_store import KeyRequest, KeyStore
from gateway.storage.mcp_pin_store import McpPins
from gateway.support.paging import page_size, paged, place_of
from gateway.tenancy.tenants import Tenant
from gateway.v1 import admin_service_pb2_grpc as grpc_pb

_S = 1_000_000
_OVERLAP_S, _OVERLAP_LIMIT_S = 86_400, 30 * 86_400
_LIFETIME_LIMIT_S = 10 * 366 * 86_400


@dataclass(eq=False)
class AdminService(grpc_pb.AdminServiceServicer):
    """Serves operators, whose credential belongs to no tenant."""

    scope = "operate"
    for_operators = True

    tenants: TenantAdmin
    keys: KeyStore
    policies: PolicyAdmin
    pins: PinAdmin
    authenticate: Authenticator

    # --- tenants ---

    @unary
    async def ListTenants(self, _: Tenant | None, request: pb.ListTenantsRequest) -> pb.ListTenantsResponse:
        size = page_size(request.page_size)
        place = place_of(request.page_token, "tenants")
        found = await self.tenants.page(size, place[1] if place else "")
        shown, token = paged(found, size, lambda one: (0, one.name), "tenants")
        tenants = [message(pb.Tenant, one, stored=None) for one in shown]
        return pb.ListTenantsResponse(tenants=tenants, next_page_token=token)

    @unary
    async def GetTenant(self, _: Tenant | None, request: pb.GetTenantRequest) -> pb.GetTenantResponse:
        found, stored = await self.tenants.get(request.tenant)
        return pb.GetTenantResponse(tenant=message(pb.Tenant, found, stored=stored))

    @unary
    async def DeleteTenantData(
        self, _: Tenant | None, request: pb.DeleteTenantDataRequest
    ) -> pb.DeleteTenantDataResponse:
        erased = await self.tenants.delete(request.tenant, audit=request.audit, by=actor())
        return message(pb.DeleteTenantDataResponse, erased)

    # --- keys ---

    @unary
    async def CreateKey(self, _: Tenant | None, request: pb.CreateKeyRequest) -> pb.CreateKeyResponse:
        operator = not request.tenant
        if not operator:
            self.tenants.check(request.tenant)
        if not 0 <= request.expires_in_s <= _LIFETIME_LIMIT_S:
            raise InvalidArgument(f"expires_in_s: 1 to {_LIFETIME_LIMIT_S:,}, or 0 for never")
        key = make_key(request.scopes or (OPERATOR_SCOPES if operator else ACTING_SCOPES), operator=operator)
        made = ("create", request.tenant, ",".join(key.scopes), request.name, request.expires_in_s)
        asked = KeyRequest.of(request.request_id, actor(), *made)
        lifetime_us = request.expires_in_s * _S or None
        stored = await self.keys.add(
            request.tenant, key, name=request.name, lifetime_us=lifetime_us, by=actor(), request=asked
        )
        return pb.CreateKeyResponse(key=message(pb.Key, stored), secret=key.secret)

    @unary
    async def ListKeys(self, _: Tenant | None, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        size = page_size(request.page_size)
        query = ("keys", request.tenant, request.include_ended, request.scope, request.state)
        found = await self.keys.list(
            request.tenant or None,
            include_ended=request.include_ended,
            limit=size + 1,
            before=place_of(request.page_token, *query),
            scope=request.scope,
            state=name_of(pb.KeyState, request.state),
        )
        shown, token = paged(found, size, lambda key: (key.created_us, key.id), *query)
        return pb.ListKeysResponse(keys=[message(pb.Key, key) for key in shown], next_page_token=token)

    @unary
    async def RevokeKey(self, _: Tenant | None, request: pb.RevokeKeyRequest) -> pb.RevokeKeyResponse:
        key = await self.keys.revoke(request.key_id, by=actor())
        if request.cancel_runs:
            under_way = await self.keys.cancel_runs(key.tenant, key.shown, by=actor())
        else:
            under_way = await self.keys.runs_of(key.tenant, key.shown)
        return pb.RevokeKeyResponse(key=message(pb.Key, key), runs_under_way=under_way)

    @unary
    async def RotateKey(self, _: Tenant | None, request: pb.RotateKeyRequest) -> pb.RotateKeyResponse:
        if not 0 <= request.overlap_s <= _OVERLAP_LIMIT_S:
            raise InvalidArgument(f"overlap_s: 1 to {_OVERLAP_LIMIT_S:,}, or 0 for {_OVERLAP_S:,}")
        overlap_us = (request.overlap_s or _OVERLAP_S) * _S
        asked = KeyRequest.of(request.request_id, actor(), "rotate", request.key_id, request.overlap_s)
        new, key = await self.keys.rotate(request.key_id, overlap_us=overlap_us, by=actor(), request=asked)
        return pb.RotateKeyResponse(key=message(pb.Key, new), secret=key.secret)

    # --- policies ---

    @unary
    async def GetPolicy(self, _: Tenant | None, request: pb.GetPolicyRequest) -> pb.GetPolicyResponse:
        layer = await self.policies.read(request.tenant, request.version)
        rules = [
            pb.PolicyRule(id=one.rule.id, effect=one.rule.effect, enforcement=enforcement, group=one.group or "")
            for one, enforcement in layer.rules
        ]
        return pb.GetPolicyResponse(text=layer.text, version=layer.version, rules=rules)

    @unary
    async def ApplyPolicy(self, _: Tenant | None, request: pb.ApplyPolicyRequest) -> pb.ApplyPolicyResponse:
        expected = request.expected_version if request.HasField("expected_version") else None
        texts = {"text": request.text, "version": request.version, "comment": request.comment}
        version = await self.policies.apply(
            request.tenant, **texts, by=actor(), check_only=request.check_only, expected_version=expected
        )
        return pb.ApplyPolicyResponse(version=version)

    @unary
    async def ListPolicyChanges(
        self, _: Tenant | None, request: pb.ListPolicyChangesRequest
    ) -> pb.ListPolicyChangesResponse:
        size = page_size(request.page_size)
        found = await self.policies.history(request.tenant, size=size, token=request.page_token)
        shown, token = paged(found, size, lambda one: (one[0].id, ""), request.tenant)
        return pb.ListPolicyChangesResponse(
            changes=[message(pb.PolicyChange, change, version=version) for change, version in shown],
            next_page_token=token,
        )

    # --- tools of MCP servers ---

    @unary
    async def ListMcpPins(self, _: Tenant | None, request: pb.ListMcpPinsRequest) -> pb.ListMcpPinsResponse:
        found = await self.pins.list(request.tenant, request.agent)
        servers = [_server(one) for one in found if request.server in ("", one.pins.server)]
        return pb.ListMcpPinsResponse(servers=servers)

    @unary
    async def AcceptMcpPins(self, _: Tenant | None, request: pb.AcceptMcpPinsRequest) -> pb.AcceptMcpPinsResponse:
        wanted = McpPins(request.tenant, request.agent, request.server, seen_digest=request.digest)
        return pb.AcceptMcpPinsResponse(server=_server(await self.pins.accept(wanted, actor())))

    @unary
    async def RemoveMcpPins(self, _: Tenant | None, request: pb.RemoveMcpPinsRequest) -> pb.RemoveMcpPinsResponse:
        wanted = McpPins(request.tenant, request.agent, request.server)
        return pb.RemoveMcpPinsResponse(server=_server(await self.pins.remove(wanted, actor())))


def _server(found: PinnedServer) -> pb.McpServerPins:
    pins = found.pins
    tools = [
        pb.McpTool(
            name=one.definition.name,
            description=one.definition.description,
            parameters_json=json.dumps(one.definition.parameters),
            digest=one.definition.digest,
            status=one.status,
        )
        for one in found.tools
    ]
    times = {
        f"{name}_at": timestamp(us * 1000) for name, us in (("seen", pins.seen_us), ("accepted", pins.pinned_us)) if us
    }
    return pb.McpServerPins(
        agent=pins.agent,
        server=pins.server,
        status=pins.status,
        digest=pins.seen_digest,
        accepted_by=pins.pinned_by,
        tools=tools,
        left_out=pins.left_out.splitlines(),
        **times,
    )
