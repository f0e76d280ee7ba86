"""`airlock approvals grants` and `revoke`, and `airlock run --follow-policy`, against a server of the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from airlock.v1 import approval_service_pb2 as pb
from airlock.v1 import run_service_pb2
from gateway.v1 import approval_service_pb2_grpc as grpc_pb
from gateway.v1 import run_service_pb2_grpc

_PATIENCE_S = 60


def granted(id_: str, **fields: Any) -> pb.Grant:
    made = pb.Grant(
        id=id_, thread="t1", rule="- id: grant-1\n  argv:\n  - [git, '[red]push']\n", approval_id="apr_1",
        granted_by="alk_ab..", in_force=True, **fields,
    )  # fmt: skip
    made.created_at.GetCurrentTime()
    return made


class Service(grpc_pb.ApprovalServiceServicer, run_service_pb2_grpc.RunServiceServicer):
    """Grants in memory, in pages of one, and runs that end at once."""

    def __init__(self) -> None:
        self.grants = [granted("grant_" + "a" * 40), granted("grant_b", run_id="run_1")]
        self.listed: list[pb.ListGrantsRequest] = []
        self.modes: list[int] = []

    def ListGrants(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.listed.append(request)
        at = int(request.page_token or 0)
        more = str(at + 1) if at + 1 < len(self.grants) else ""
        return pb.ListGrantsResponse(grants=self.grants[at : at + 1], next_page_token=more)

    def RevokeGrant(self, request: Any, context: Any) -> Any:  # noqa: N802
        grant = next(one for one in self.grants if one.id == request.grant_id)
        grant.revoked_at.GetCurrentTime()
        grant.in_force = False
        return pb.RevokeGrantResponse(grant=grant)

    def StartRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.modes.append(request.policy_mode)
        run = run_service_pb2.Run(id="run_1", thread="t", policy_mode=request.policy_mode)
        return run_service_pb2.StartRunResponse(run=run)

    def WatchRun(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        payload = json.dumps({"status": "completed", "stop": {}, "answer": "done"})
        event = run_service_pb2.Event(sequence=1, type="run_finished", payload_json=payload)
        yield run_service_pb2.WatchRunResponse(event=event)


@pytest.fixture
def served() -> Iterator[tuple[Service, str]]:
    service = Service()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    grpc_pb.add_ApprovalServiceServicer_to_server(service, server)
    run_service_pb2_grpc.add_RunServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(0).wait()


def airlock(address: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "gateway.cli", *arguments, "--address", address, "--key", "alk_x"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE_S).stdout


def test_grants_are_shown_whole(served: tuple[Service, str]) -> None:
    service, address = served
    shown = airlock(address, "approvals", "grants", "--thread", "t1")
    assert f"{'grant_' + 'a' * 40} · thread t1 · every call\n" in shown
    assert "grant_b · thread t1 · run run_1\n" in shown
    assert "by alk_ab.. · apr_1\n" in shown
    assert "[red]push" in shown
    assert [(one.thread, one.include_ended) for one in service.listed] == [("t1", False)] * 2
    listed = json.loads(airlock(address, "approvals", "grants", "--all", "--limit", "1", "--json"))
    assert [(one["id"], one["in_force"], one["revoked_at"]) for one in listed] == [(service.grants[0].id, True, None)]
    assert service.listed[-1].include_ended


def test_a_grant_is_revoked_by_its_id(served: tuple[Service, str]) -> None:
    service, address = served
    assert airlock(address, "approvals", "revoke", "grant_b") == "revoked grant_b\n"
    assert [one.in_force for one in service.grants] == [True, False]
    assert "grant_b · thread t1 · run run_1 · revoked\n" in airlock(address, "approvals", "grants", "--all")
    revoked = json.loads(airlock(address, "approvals", "revoke", service.grants[0].id, "--json"))
    assert revoked["revoked_at"] is not None


def test_a_run_follows_the_policy_on_request(served: tuple[Service, str]) -> None:
    service, address = served
    for options in ((), ("--follow-policy",)):
        airlock(address, "run", "go", "--json", *options)
    assert service.modes == [run_service_pb2.POLICY_MODE_PIN, run_service_pb2.POLICY_MODE_FOLLOW]
