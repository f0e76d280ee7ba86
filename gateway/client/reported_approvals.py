"""What a watcher of approvals was told, so that one who watches again after a break is told what is new, and once."""

from __future__ import annotations

from gateway.v1 import approval_service_pb2 as pb

_Said = tuple[int, int, int]


class ReportedApprovals:
    """The approvals that waited when they were told; those that were answered are over, and are not kept."""

    def __init__(self) -> None:
        self._told: dict[str, _Said] = {}
        self._unseen: set[str] = set()

    def begin(self) -> None:
        """Say that all that wait will come again."""
        self._told = {id_: said for id_, said in self._told.items() if said[0] == pb.APPROVAL_STATUS_PENDING}
        self._unseen = set(self._told)

    def is_news(self, approval: pb.Approval) -> bool:
        """Return whether an approval that came is another than the one that was told."""
        answered_unwatched = approval.id in self._unseen and approval.status != pb.APPROVAL_STATUS_PENDING
        self._unseen.discard(approval.id)
        said = (approval.status, approval.answer, approval.resolved_at.ToMicroseconds())
        before = self._told.get(approval.id)
        # What is over does not come again, unless it was asked for: the stream may have the same change yet.
        if approval.status == pb.APPROVAL_STATUS_PENDING or answered_unwatched:
            self._told[approval.id] = said
        else:
            self._told.pop(approval.id, None)
        return before != said

    def unseen(self) -> list[str]:
        """Return, once all that wait have come, the ids of those that were told and did not."""
        return sorted(self._unseen)
