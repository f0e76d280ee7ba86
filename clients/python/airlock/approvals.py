"""Approvals and grants in the Python client. Needs an approver's key."""

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airlock.errors import InvalidArgument, NotFound, Unavailable
from airlock.messages import Fields, reader, record
from airlock.v1 import approval_service_pb2 as pb
from airlock.wire import Wire

ApprovalStatus = Literal["pending", "approved", "used", "denied", "expired", "cancelled"]
Answer = Literal["once", "run", "thread", "deny", "edit"]

CaughtUp = Callable[[], Awaitable[None] | None]
"""Is called when all pending approvals have been yielded."""

_ANSWERS = {"once": "allow_once", "run": "allow_run", "thread": "allow_thread", "deny": "deny", "edit": "edit"}
_WORDS = ("", *_ANSWERS)  # by number


@dataclass(frozen=True)
class Approval:
    """A tool call that waits, or waited, for an answer. `asked` are the parts it is about, `proposed_rule` is YAML.

    If the answer was edit, the call was approved with `edited_arguments`. `answer` is empty until there is one. Lists
    and watches omit fields longer than 4 KiB, such as `arguments`, and set `arguments_cut`; `approval(id)` returns all.
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
    """A rule (YAML) that an answer created: calls of the thread that it matches pass where the policy asks.

    It is `in_force` until it is revoked, or the run `run_id` that it is for ends.
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

    async def approvals(
        self, *, status: ApprovalStatus | None = None, thread: str = "", run_id: str = "", limit: int = 50
    ) -> Sequence[Approval]:
        """Return approvals, newest first."""
        wanted: Fields = {"status": status or 0, "thread": thread, "run_id": run_id, "limit": limit}
        return [one async for one in self._listed(_approval, pb.ListApprovalsRequest, "approvals", **wanted)]

    async def approval(self, approval_id: str) -> Approval:
        """Return an approval."""
        return _approval((await self._ask(pb.GetApprovalRequest, approval_id=approval_id)).approval)

    async def watch_approvals(
        self, caught_up: CaughtUp = lambda: None, *, resume: bool = True
    ) -> AsyncIterator[Approval]:
        """Yield the pending approvals, call `caught_up`, then yield each approval that changes, without end.

        If the connection breaks, the client watches again as long as its Retry allows: it yields new pending approvals
        and those answered in between, and calls `caught_up` again. Without `resume` it raises Unavailable.
        """
        reported = _ReportedApprovals()

        kind = pb.WatchApprovalsRequest
        resumed = self._resumed(kind, {}, begin=reported.begin)
        async for said in resumed if resume else self._stream(self._method(kind), kind()):
            if said.HasField("approval") and reported.is_news(said.approval):
                yield _approval(said.approval)
            elif said.caught_up:
                for approval_id in sorted(reported.unseen):
                    missed = await self._missed(approval_id)
                    if missed is not None and reported.is_news(missed):
                        yield _approval(missed)
                if inspect.isawaitable(taken := caught_up()):
                    await taken
        raise Unavailable("the gateway ended the stream; watch again when it is back")

    async def _missed(self, approval_id: str) -> pb.Approval | None:
        """Return an approval that was answered while the client was disconnected; None if it was deleted."""
        try:
            answer = await self._again(
                lambda _: self._ask(pb.GetApprovalRequest, safe=False, approval_id=approval_id), patient=True
            )
        except NotFound:
            return None
        approval: pb.Approval = answer.approval
        return approval

    async def resolve_approval(
        self, approval_id: str, answer: Answer, *, text: str = "", arguments: Mapping[str, Any] | None = None
    ) -> Approval:
        """Answer. `text` is for people and, with deny, for the model; `arguments` are for edit."""
        if answer not in _ANSWERS:
            raise InvalidArgument(f"answer: {answer!r} is not one of {', '.join(_ANSWERS)}")
        edited = "" if arguments is None else json.dumps(arguments)
        asked: Fields = {"answer": _ANSWERS[answer], "message": text, "arguments_json": edited}
        return _approval((await self._ask(pb.ResolveApprovalRequest, approval_id=approval_id, **asked)).approval)

    async def grants(self, *, thread: str = "", include_ended: bool = False, limit: int = 50) -> Sequence[Grant]:
        """Return grants, newest first; with `include_ended` also those no longer in force."""
        wanted: Fields = {"thread": thread, "include_ended": include_ended, "limit": limit}
        return [one async for one in self._listed(reader(Grant), pb.ListGrantsRequest, "grants", **wanted)]

    async def revoke_grant(self, grant_id: str) -> Grant:
        """Revoke a grant from the next call on. A revoked grant stays as it is."""
        return record(Grant, (await self._ask(pb.RevokeGrantRequest, grant_id=grant_id)).grant)


def _approval(one: pb.Approval) -> Approval:
    answer = _WORDS[one.answer] if one.answer < len(_WORDS) else ""
    return record(Approval, one, arguments=json.loads(one.arguments_json or "{}"), answer=answer)


class _ReportedApprovals:
    """Pending approvals that a watcher has received, so that it gets each change once after a broken connection.

    `unseen` are those that the current stream has not repeated; it repeats all that are pending.
    """

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, int, int]] = {}
        self.unseen: set[str] = set()

    def begin(self) -> None:
        self._reported = {id_: said for id_, said in self._reported.items() if said[0] == pb.APPROVAL_STATUS_PENDING}
        self.unseen = set(self._reported)

    def is_news(self, approval: pb.Approval) -> bool:
        """Return whether an approval differs from the one reported before."""
        pending = approval.status == pb.APPROVAL_STATUS_PENDING
        said = (approval.status, approval.answer, approval.resolved_at.ToMicroseconds())
        before = self._reported.get(approval.id)
        # An answered approval does not come again, unless it was asked for: the stream may still have the same change.
        if pending or approval.id in self.unseen:
            self._reported[approval.id] = said
        else:
            self._reported.pop(approval.id, None)
        self.unseen.discard(approval.id)
        return before != said
