"""Streams that break, and starts whose answer is lost: the client goes on where it was, and nothing comes twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_status import rpc_status

from airlock.v1 import approval_service_pb2 as approvals_pb
from airlock.v1 import audit_service_pb2 as audit_pb
from airlock.v1 import process_service_pb2 as pb
from gateway.client import Client, Conflict, Retry, Unavailable
from gateway.errors import AirlockError, InProgress, NotFound, Overloaded
from gateway.serving.edge import status_of
from gateway.v1 import approval_service_pb2_grpc as approvals_grpc
from gateway.v1 import audit_service_pb2_grpc as audit_grpc
from gateway.v1 import process_service_pb2_grpc as grpc_pb

OUTPUT = b"".join(b"line %d\n" % number for number in range(20))
QUICK = Retry(attempts=4, first_s=0.001, longest_s=0.01, resume_s=0.05)


async def abort(context: Any, error: AirlockError) -> None:
    await context.abort_with_status(rpc_status.to_status(status_of(error)))


class Breaking(grpc_pb.ProcessServiceServicer, approvals_grpc.ApprovalServiceServicer, audit_grpc.AuditServiceServicer):
    """A gateway whose streams break after a piece or two, and that loses its answers to the first starts."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.lost = 0
        self.kept: dict[str, pb.Process] = {}
        self.starts: list[str] = []
        self.approvals: dict[str, approvals_pb.Approval] = {}
        # What each watch receives: the approvals that wait, and the changes after them.
        self.watches: list[tuple[list[approvals_pb.Approval], list[approvals_pb.Approval]]] = []

    async def ReadProcess(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append(request.offset)
        if len(self.asked) == 2:
            await abort(context, Overloaded("everybody is back at once", 0.001))
        data = OUTPUT[request.offset : request.offset + 50]
        yield pb.ReadProcessResponse(offset=request.offset, data=data)
        if request.offset + len(data) < len(OUTPUT):
            await abort(context, Unavailable("broken"))

    async def StartProcess(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.starts.append(request.request_id)
        if request.request_id not in self.kept:
            if request.id in {one.id for one in self.kept.values()}:
                await abort(context, Conflict("in use"))
            made = pb.Process(id=request.id or f"p{len(self.kept)}", argv=request.program.argv, running=True)
            self.kept[request.request_id] = made
        if self.lost:
            self.lost -= 1
            await abort(context, Unavailable("broken") if self.lost else InProgress("being started", 0.001))
        return pb.StartProcessResponse(process=self.kept[request.request_id])

    async def TailAudit(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append(request.from_sequence)
        for sequence in range(request.from_sequence, request.from_sequence + 2):
            yield audit_pb.TailAuditResponse(record=audit_pb.AuditRecord(sequence=sequence))
        await abort(context, Unavailable("broken"))

    async def WatchApprovals(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        waiting, changes = self.watches.pop(0) if self.watches else ([], [])
        for one in waiting:
            yield approvals_pb.WatchApprovalsResponse(approval=one)
        yield approvals_pb.WatchApprovalsResponse(caught_up=True)
        for one in changes:
            yield approvals_pb.WatchApprovalsResponse(approval=one)
        await abort(context, Unavailable("broken"))

    async def GetApproval(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.approval_id not in self.approvals:
            await abort(context, NotFound("erased"))
        return approvals_pb.GetApprovalResponse(approval=self.approvals[request.approval_id])


@pytest.fixture
async def breaking() -> AsyncIterator[tuple[Breaking, Client]]:
    servicer, server = Breaking(), grpc.aio.server()
    for add in (
        grpc_pb.add_ProcessServiceServicer_to_server,
        approvals_grpc.add_ApprovalServiceServicer_to_server,
        audit_grpc.add_AuditServiceServicer_to_server,
    ):
        add(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x", retry=QUICK) as client:
        yield servicer, client
    await server.stop(None)


async def test_output_goes_on_with_the_byte_after_the_last_that_came(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    pieces = [piece async for piece in client.process_output("t", "p", offset=7, follow=True)]
    assert b"".join(piece.data for piece in pieces) == OUTPUT[7:]
    assert servicer.asked == [7, 57, 57, 107]


async def test_the_audit_is_followed_on_from_the_record_after_the_last(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    tail = client.tail_audit(from_sequence=5)
    assert [(await anext(tail)).sequence for _ in range(6)] == [5, 6, 7, 8, 9, 10]
    assert servicer.asked == [5, 7, 9]
    once = client.tail_audit(from_sequence=5, resume=False)
    assert [(await anext(once)).sequence for _ in range(2)] == [5, 6]
    with pytest.raises(Unavailable, match="broken"):
        await anext(once)


def approval(id_: str, status: approvals_pb.ApprovalStatus = approvals_pb.APPROVAL_STATUS_PENDING) -> Any:
    pending = status == approvals_pb.APPROVAL_STATUS_PENDING
    return approvals_pb.Approval(id=id_, status=status, resolved_at=None if pending else Timestamp(seconds=9))


async def test_new_approvals_and_those_answered_meanwhile_are_reported_once(
    breaking: tuple[Breaking, Client],
) -> None:
    servicer, client = breaking
    a, b, c, d, e = (approval(id_) for id_ in "abcde")
    denied, approved = approvals_pb.APPROVAL_STATUS_DENIED, approvals_pb.APPROVAL_STATUS_APPROVED
    a_denied, c_approved = approval("a", denied), approval("c", approved)
    servicer.approvals = {"a": a_denied}
    servicer.watches = [
        ([a, b, d], [c, c_approved]),
        # While there was no watch, a was denied, d erased and e asked; the stream has a's change yet.
        ([b, e], [a_denied]),
        ([b, e], [approval("b", denied)]),
    ]
    caught_up: list[None] = []
    watched = client.watch_approvals(lambda: caught_up.append(None))
    reported = [(one.id, one.status) for one in [await anext(watched) for _ in range(8)]]
    assert reported == [
        *((id_, "pending") for id_ in "abdc"),
        ("c", "approved"),
        ("e", "pending"),
        ("a", "denied"),
        ("b", "denied"),
    ]
    assert len(caught_up) == 3
    await watched.aclose()


async def test_a_start_whose_answer_was_lost_is_asked_for_again_with_its_id(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    # The second attempt comes while the first is starting it.
    servicer.lost = 2
    started = await client.start_process(["sleep", "9"])
    assert (started.argv, started.running) == (("sleep", "9"), True)
    assert len(servicer.starts) == 3
    assert len(set(servicer.starts)) == len(servicer.kept) == 1
    another = await client.start_process(["sleep", "9"])
    assert another.id != started.id


async def test_an_id_that_another_process_has_is_a_conflict(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    await client.start_process(["one"], process_id="mine")
    with pytest.raises(Conflict):
        await client.start_process(["one"], process_id="mine")
    assert len(servicer.starts) == 2


async def test_without_retry_nothing_is_resumed(breaking: tuple[Breaking, Client]) -> None:
    servicer, client = breaking
    client._retry = None
    servicer.lost = 2
    with pytest.raises(Unavailable):
        await client.start_process(["one"])
    with pytest.raises(Unavailable):
        _ = [piece async for piece in client.process_output("t", "p")]
    assert (len(servicer.starts), servicer.asked) == (1, [0])
