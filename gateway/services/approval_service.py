"""ApprovalService over gateway.approvals.approvals."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from airlock.v1 import approval_service_pb2 as pb
from gateway.approvals.approvals import Approvals
from gateway.credentials.caller import caller_shown
from gateway.errors import InvalidArgument, Unavailable
from gateway.services.messages import message, name_of, paging
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.storage.approval_store import LISTED_LIMIT_BYTES, Approval
from gateway.tenancy.tenants import Tenant
from gateway.v1 import approval_service_pb2_grpc as grpc_pb


@dataclass(eq=False)
class ApprovalService(grpc_pb.ApprovalServiceServicer):
    """Shows approvals and takes answers."""

    scope = "approve"

    approvals: Approvals
    authenticate: Authenticator

    @unary
    async def ListApprovals(self, tenant: Tenant, request: pb.ListApprovalsRequest) -> pb.ListApprovalsResponse:
        status = name_of(pb.ApprovalStatus, request.status) or None
        if request.status and status is None:
            raise InvalidArgument(f"status: {request.status} is unknown to this version")
        found, token = await self.approvals.page(
            tenant, status=status, thread=request.thread, run_id=request.run_id, **paging(request)
        )
        return pb.ListApprovalsResponse(approvals=[_approval(one) for one in found], next_page_token=token)

    @unary
    async def GetApproval(self, tenant: Tenant, request: pb.GetApprovalRequest) -> pb.GetApprovalResponse:
        return pb.GetApprovalResponse(approval=_approval(await self.approvals.get(tenant, request.approval_id)))

    @streaming
    async def WatchApprovals(
        self, tenant: Tenant, request: pb.WatchApprovalsRequest
    ) -> AsyncIterator[pb.WatchApprovalsResponse]:
        """Stream the pending approvals, then each change; ends with Unavailable when the gateway stops."""
        async for approval in self.approvals.watch(tenant):
            if approval is None:
                yield pb.WatchApprovalsResponse(caught_up=True)
            else:
                yield pb.WatchApprovalsResponse(approval=_approval(approval))
        raise Unavailable("the gateway is shutting down: watch again when it is back")

    @unary
    async def ResolveApproval(self, tenant: Tenant, request: pb.ResolveApprovalRequest) -> pb.ResolveApprovalResponse:
        answer = name_of(pb.Answer, request.answer)
        if not answer:
            raise InvalidArgument("answer: ALLOW_ONCE, ALLOW_RUN, ALLOW_THREAD, DENY or EDIT")
        edited = request.arguments_json
        resolved = await self.approvals.resolve(
            tenant, request.approval_id, answer, by=caller_shown(), message=request.message, arguments_json=edited
        )
        return pb.ResolveApprovalResponse(approval=_approval(resolved))

    @unary
    async def ListGrants(self, tenant: Tenant, request: pb.ListGrantsRequest) -> pb.ListGrantsResponse:
        found, token = await self.approvals.grants(
            tenant, thread=request.thread, include_ended=request.include_ended, **paging(request)
        )
        return pb.ListGrantsResponse(grants=[message(pb.Grant, one) for one in found], next_page_token=token)

    @unary
    async def RevokeGrant(self, tenant: Tenant, request: pb.RevokeGrantRequest) -> pb.RevokeGrantResponse:
        revoked = await self.approvals.revoke(tenant, request.grant_id, by=caller_shown())
        return pb.RevokeGrantResponse(grant=message(pb.Grant, revoked))


def _approval(approval: Approval) -> pb.Approval:
    left_out = approval.cut and approval.arguments_bytes > LISTED_LIMIT_BYTES
    return message(
        pb.Approval,
        approval,
        arguments_json="" if left_out else approval.arguments,
        arguments_size_bytes=approval.arguments_bytes,
        arguments_cut=approval.cut,
        asked=approval.asked_parts,
        edited_arguments_json=approval.edited_arguments,
    )
