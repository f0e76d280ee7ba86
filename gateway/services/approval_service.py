"""ApprovalService over gateway.approvals.approvals."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.approvals.approvals import Approvals
from gateway.errors import InvalidArgument, Unavailable
from gateway.identity.call_credentials import Context
from gateway.services.timestamps import timestamp
from gateway.serving.edge import Authenticator, caller, streaming, unary
from gateway.storage.approval_store import LISTED_LIMIT_BYTES, Approval
from gateway.storage.grant_store import Grant
from gateway.tenancy.tenants import Tenant
from gateway.v1 import approval_service_pb2 as pb
from gateway.v1 import approval_service_pb2_grpc as grpc_pb

_STATUS = {
    "pending": pb.APPROVAL_STATUS_PENDING,
    "approved": pb.APPROVAL_STATUS_APPROVED,
    "used": pb.APPROVAL_STATUS_USED,
    "denied": pb.APPROVAL_STATUS_DENIED,
    "expired": pb.APPROVAL_STATUS_EXPIRED,
    "cancelled": pb.APPROVAL_STATUS_CANCELLED,
}
_ANSWER = {
    "allow_once": pb.ANSWER_ALLOW_ONCE,
    "allow_run": pb.ANSWER_ALLOW_RUN,
    "allow_thread": pb.ANSWER_ALLOW_THREAD,
    "deny": pb.ANSWER_DENY,
    "edit": pb.ANSWER_EDIT,
}
_STATUS_NAMES = {number: name for name, number in _STATUS.items()}
_ANSWER_NAMES = {number: name for name, number in _ANSWER.items()}


class ApprovalService(grpc_pb.ApprovalServiceServicer):
    """Shows approvals and takes answers."""

    scope = "approve"

    def __init__(self, approvals: Approvals, authenticate: Authenticator) -> None:
        self._approvals = approvals
        self.authenticate = authenticate

    @unary
    async def ListApprovals(  # noqa: N802
        self, tenant: Tenant, request: pb.ListApprovalsRequest, context: Context
    ) -> pb.ListApprovalsResponse:
        """List approvals, a page at a time."""
        del context
        status = None
        if request.status:
            status = _STATUS_NAMES.get(request.status)
            if status is None:
                raise InvalidArgument(f"status: {request.status} is none of this version's")
        found, token = await self._approvals.page(
            tenant,
            status=status,
            thread=request.thread,
            run_id=request.run_id,
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListApprovalsResponse(approvals=[_approval(one) for one in found], next_page_token=token)

    @unary
    async def GetApproval(  # noqa: N802
        self, tenant: Tenant, request: pb.GetApprovalRequest, context: Context
    ) -> pb.GetApprovalResponse:
        """Return an approval."""
        del context
        return pb.GetApprovalResponse(approval=_approval(await self._approvals.get(tenant, request.approval_id)))

    @streaming
    async def WatchApprovals(  # noqa: N802
        self, tenant: Tenant, request: pb.WatchApprovalsRequest, context: Context
    ) -> AsyncIterator[pb.WatchApprovalsResponse]:
        """Stream what waits, then each change; it never ends well, for there is always more to come."""
        del request, context
        async for approval in self._approvals.watch(tenant):
            if approval is None:
                yield pb.WatchApprovalsResponse(caught_up=True)
            else:
                yield pb.WatchApprovalsResponse(approval=_approval(approval))
        raise Unavailable("the gateway is shutting down: watch again when it is back")

    @unary
    async def ResolveApproval(  # noqa: N802
        self, tenant: Tenant, request: pb.ResolveApprovalRequest, context: Context
    ) -> pb.ResolveApprovalResponse:
        """Answer."""
        answer = _ANSWER_NAMES.get(request.answer)
        if answer is None:
            raise InvalidArgument("answer: ALLOW_ONCE, ALLOW_RUN, ALLOW_THREAD, DENY or EDIT")
        resolved = await self._approvals.resolve(
            tenant,
            request.approval_id,
            answer,
            by=caller(context).shown,
            message=request.message,
            arguments_json=request.arguments_json,
        )
        return pb.ResolveApprovalResponse(approval=_approval(resolved))

    @unary
    async def ListGrants(  # noqa: N802
        self, tenant: Tenant, request: pb.ListGrantsRequest, context: Context
    ) -> pb.ListGrantsResponse:
        """List what was granted, a page at a time."""
        del context
        found, token = await self._approvals.grants(
            tenant,
            thread=request.thread,
            include_ended=request.include_ended,
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListGrantsResponse(grants=[_grant(one) for one in found], next_page_token=token)

    @unary
    async def RevokeGrant(  # noqa: N802
        self, tenant: Tenant, request: pb.RevokeGrantRequest, context: Context
    ) -> pb.RevokeGrantResponse:
        """Take a grant back."""
        revoked = await self._approvals.revoke(tenant, request.grant_id, by=caller(context).shown)
        return pb.RevokeGrantResponse(grant=_grant(revoked))


def _approval(approval: Approval) -> pb.Approval:
    left_out = approval.cut and approval.arguments_bytes > LISTED_LIMIT_BYTES
    return pb.Approval(
        id=approval.id,
        thread=approval.thread,
        run_id=approval.run_id or "",
        call_id=approval.call_id,
        tool=approval.tool,
        arguments_json="" if left_out else approval.arguments,
        arguments_size_bytes=approval.arguments_bytes,
        arguments_cut=approval.cut,
        digest=approval.digest,
        policy_version=approval.policy_version,
        rule=approval.rule,
        reason=approval.reason,
        asked=approval.asked_parts,
        proposed_rule=approval.proposed_rule or "",
        status=_STATUS[approval.status],
        answer=_ANSWER.get(approval.answer or "", pb.ANSWER_UNSPECIFIED),
        message=approval.message or "",
        resolved_by=approval.resolved_by or "",
        edited_arguments_json=approval.edited_arguments or "",
        created_at=timestamp(approval.created_us),
        expires_at=timestamp(approval.expires_us),
        resolved_at=None if approval.resolved_us is None else timestamp(approval.resolved_us),
    )


def _grant(grant: Grant) -> pb.Grant:
    return pb.Grant(
        id=grant.id,
        thread=grant.thread,
        run_id=grant.run_id or "",
        rule=grant.rule,
        approval_id=grant.approval_id,
        granted_by=grant.granted_by or "",
        created_at=timestamp(grant.created_us),
        revoked_at=None if grant.revoked_us is None else timestamp(grant.revoked_us),
        in_force=grant.in_force,
    )
