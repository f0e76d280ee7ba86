"""The approvals that a watcher has received, so that it gets each change once after a broken connection."""

from __future__ import annotations

from gateway.v1 import approval_service_pb2 as pb

_Said = tuple[int, int, int]


class ReportedApprovals:
    """Pending approvals that were reported; answered ones are not kept."""

    def __init__(self) -> None:
        self._reported: dict[str, _Said] = {}
        self._unseen: set[str] = set()

    def begin(self) -> None:
        """Start a new stream, which repeats all pending approvals."""
        self._reported = {id_: said for id_, said in self._reported.items() if said[0] == pb.APPROVAL_STATUS_PENDING}
        self._unseen = set(self._reported)

    def is_news(self, approval: pb.Approval) -> bool:
        """Return whether an approval differs from the one reported before."""
        answered_unwatched = approval.id in self._unseen and approval.status != pb.APPROVAL_STATUS_PENDING
        self._unseen.discard(approval.id)
        said = (approval.status, approval.answer, approval.resolved_at.ToMicroseconds())
        before = self._reported.get(approval.id)
        # What is over does not come again, unless it was asked for: the stream may have the same change yet.
        if approval.status == pb.APPROVAL_STATUS_PENDING or answered_unwatched:
            self._reported[approval.id] = said
        else:
            self._reported.pop(approval.id, None)
        return before != said

    def unseen(self) -> list[str]:
        """Return the ids of reported approvals that the stream did not repeat; call it after all pending ones."""
        return sorted(self._unseen)
