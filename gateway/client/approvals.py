"""Approvals and grants in the Python client. Needs an approver's key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gateway.client.messages import enum_name, enum_number, record
from gateway.client.reported_approvals import ReportedApprovals
from gateway.client.wire import Wire, pause
from gateway.errors import InvalidArgument, NotFound, Overloaded, Unavailable
from gateway.v1 import approval_service_pb2 as pb
from gateway.v1 import approval_service_pb2_grpc as grpc_pb

ApprovalStatus = Literal["pending", "approved", "used", "denied", "expired", "cancelled"]
Answer = Literal["once", "run", "thread", "deny", "edit"]

_ANSWERS = {
    "once": pb.ANSWER_ALLOW_ONCE,
    "run": pb.ANSWER_ALLOW_RUN,
    "thread": pb.ANSWER_ALLOW_THREAD,
    "deny": pb.ANSWER_DENY,
    "edit": pb.ANSWER_EDIT,
}
_WORDS = {number: word for word, number in _ANSWERS.items()}


@dataclass(frozen=True)
class Approval:
    """A tool call that waits, or waited, for an answer. `asked` are the parts it is about, `proposed_rule` is YAML.

    Of one that was edited, `edited_arguments` are what it was approved with. `answer` is empty until there is one.
    With `arguments_cut`, as lists and watches give it, what is longer than 4 KiB was left out: `arguments` are empty
    then, or another field is. `approval(id)` returns all of it.
    """

    id: str
    thread: str
    run_id: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    digest: str
    policy_version: str
    rule: str
    reason: str
    asked: tuple[str, ...]
    proposed_rule: str
    status: str
    answer: str
    message: str
    resolved_by: str
    edited_arguments: Mapping[str, Any] | None
    created_at: datetime
    expires_at: datetime
    resolved_at: datetime | None
    arguments_size_bytes: int = 0
    arguments_cut: bool = False


@dataclass(frozen=True)
class Grant:
    """A rule (YAML) that an answer made: where the policy asks, calls of the thread that it matches pass.

    It is `in_force` until it is revoked, or the run that it is for, `run_id`, is over.
    """

    id: str
    thread: str
    run_id: str
    rule: str
    approval_id: str
    granted_by: str
    created_at: datetime
    revoked_at: datetime | None
    in_force: bool


class ApprovalCalls(Wire):
    """The calls of ApprovalService.

    Raises ScopeMissing if the key is not an approver's, AlreadyResolved if another approver answered first.
    """

    @property
    def _approvals(self) -> Any:
        return self._stub(grpc_pb.ApprovalServiceStub)

    async def approvals(
        self, *, status: ApprovalStatus | None = None, thread: str = "", run_id: str = "", limit: int = 50
    ) -> Sequence[Approval]:
        """Return approvals, the newest first."""
        found = self._listed(
            self._approvals.ListApprovals,
            pb.ListApprovalsRequest,
            "approvals",
            limit=limit,
            status=enum_number(pb.ApprovalStatus, status, "status") if status else 0,
            thread=thread,
            run_id=run_id,
        )
        return [_approval(one) async for one in found]

    async def approval(self, approval_id: str) -> Approval:
        """Return an approval."""
        get = self._approvals.GetApproval
        return _approval((await self._ask(get, pb.GetApprovalRequest, approval_id=approval_id)).approval)

    async def watch_approvals(
        self, caught_up: Callable[[], None] = lambda: None, *, resume: bool = True
    ) -> AsyncIterator[Approval]:
        """Yield the pending approvals, call `caught_up`, then yield each approval that changes, without end.

        If the connection breaks, the client watches again as long as its Retry allows: it yields new pending approvals
        and those answered in between, and calls `caught_up` again. Without `resume` it raises Unavailable.
        """
        reported = ReportedApprovals()

        def request() -> pb.WatchApprovalsRequest:
            reported.begin()
            return pb.WatchApprovalsRequest()

        watched = self._approvals.WatchApprovals
        async for said in self._resumed(watched, request) if resume else self._stream(watched, request()):
            if said.HasField("approval") and reported.is_news(said.approval):
                yield _approval(said.approval)
            elif said.caught_up:
                for approval_id in reported.unseen():
                    missed = await self._missed(approval_id)
                    if missed is not None and reported.is_news(missed):
                        yield _approval(missed)
                caught_up()
        raise Unavailable("the gateway ended the stream; watch again when it is back")

    async def _missed(self, approval_id: str) -> pb.Approval | None:
        """Return an approval that was answered while the client was disconnected; None if it was deleted."""
        request, attempts = pb.GetApprovalRequest(approval_id=approval_id), self._attempts()
        while True:
            try:
                approval: pb.Approval = (await self._unary(self._approvals.GetApproval, request)).approval
            except NotFound:
                return None
            except (Unavailable, Overloaded) as error:
                await pause(attempts.resume_pause_s(error), None, error)
            else:
                return approval

    async def resolve_approval(
        self, approval_id: str, answer: Answer, *, text: str = "", arguments: Mapping[str, Any] | None = None
    ) -> Approval:
        """Answer. `text` is for people and, with deny, for the model; `arguments` are for edit."""
        if answer not in _ANSWERS:
            raise InvalidArgument(f"answer: {answer!r} is not one of {', '.join(_ANSWERS)}")
        resolved = await self._ask(
            self._approvals.ResolveApproval,
            pb.ResolveApprovalRequest,
            approval_id=approval_id,
            answer=_ANSWERS[answer],
            message=text,
            arguments_json="" if arguments is None else json.dumps(arguments),
        )
        return _approval(resolved.approval)

    async def grants(self, *, thread: str = "", include_ended: bool = False, limit: int = 50) -> Sequence[Grant]:
        """Return what answers have granted, the newest first; `include_ended`: also what does not count any more."""
        asked: dict[str, Any] = {"limit": limit, "thread": thread, "include_ended": include_ended}
        found = self._listed(self._approvals.ListGrants, pb.ListGrantsRequest, "grants", **asked)
        return [record(Grant, one) async for one in found]

    async def revoke_grant(self, grant_id: str) -> Grant:
        """Take a grant back: from the next call on it does not count. One that was revoked stays as it is."""
        revoke = self._approvals.RevokeGrant
        return record(Grant, (await self._ask(revoke, pb.RevokeGrantRequest, grant_id=grant_id)).grant)


def _approval(one: pb.Approval) -> Approval:
    return record(
        Approval,
        one,
        arguments=json.loads(one.arguments_json or "{}"),
        status=enum_name(pb.ApprovalStatus, one.status),
        answer=_WORDS.get(one.answer, ""),
        edited_arguments=json.loads(one.edited_arguments_json) if one.edited_arguments_json else None,
    )
