"""Approvals and grants over the wire: the services on a real SQLite file, and the Python client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest

from airlock.v1 import approval_service_pb2 as pb
from gateway.approvals.approvals import Approvals
from gateway.client import Client, EditRefused, InvalidArgument, NotFound
from gateway.config.model_settings import ModelSettings
from gateway.credentials.caller import Caller
from gateway.identity.principal import Context, Principal
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.services.approval_service import ApprovalService
from gateway.services.tool_service import ToolService
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.requested_calls import RequestedCalls
from gateway.v1 import approval_service_pb2_grpc, tool_service_pb2_grpc
from tests.unit.gateway.made_parts import made_tool_calls

RULES = (
    Rule(id="all", tools=("execute",), effect="allow", reason="a test"),
    Rule(id="pushes", tools=("execute",), argv=(("git", "push"),), effect="ask", reason="it leaves the sandbox"),
    Rule(id="never", tools=("execute",), argv=(("git", "push", "--force"),), effect="deny", reason="history"),
)
ACME = Tenant("acme", Policy(PolicyDocument(version=1, rules=RULES)), ModelSettings(), {})
PUSH = {"command": "git push origin main", "timeout_s": 5}


async def anybody(context: Context) -> Principal:
    """Let everybody in, with every scope."""
    del context
    return Principal(ACME, Caller("key_1", "alk_ab.."), ("run", "tool", "files", "approve"))


@dataclass
class Served:
    """A client of a gateway that has approvals and tools, and no sandbox: nothing here gets as far."""

    client: Client
    store: ApprovalStore

    async def asked(self) -> str:
        result = await self.client.call_tool("execute", PUSH, thread="t")
        assert (result.verdict, result.outcome, result.edited_arguments) == ("ask", "waiting", None)
        return result.approval_id


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.open(database_url)
    store = ApprovalStore(database)
    tool_calls = made_tool_calls(database, approvals=store)
    approvals = Approvals(store, tool_calls.prepare, poll_s=0.01)
    server = grpc.aio.server()
    approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server(ApprovalService(approvals, anybody), server)
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(
        ToolService(tool_calls, anybody, RequestedCalls(tool_calls, Store(database))), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x") as client:
        yield Served(client, store)
    approvals.close()
    await server.stop(None)
    await database.close()


async def test_an_edit_that_the_policy_denies_is_refused_by_its_name(served: Served) -> None:
    approval_id = await served.asked()
    with pytest.raises(EditRefused, match="history") as raised:
        await served.client.resolve_approval(approval_id, "edit", arguments={"command": "git push --force"})
    assert raised.value.details == {"rule": "never"}
    assert (await served.client.approval(approval_id)).status == "pending"


async def test_a_service_gets_the_arguments_that_an_approver_gave(served: Served) -> None:
    approval_id = await served.asked()
    edited = {"command": "git push origin draft", "timeout_s": 5}
    await served.client.resolve_approval(approval_id, "edit", arguments=edited)
    refused = await served.client.call_tool("execute", PUSH, thread="t")
    assert (refused.verdict, refused.approval_id) == ("deny", approval_id)
    assert "make the call with these" in refused.reason
    assert refused.edited_arguments is not None
    assert refused.edited_arguments == (await served.client.approval(approval_id)).edited_arguments
    assert refused.edited_arguments.items() >= edited.items()


async def test_a_refusal_has_no_arguments_to_go_on_with(served: Served) -> None:
    await served.client.resolve_approval(await served.asked(), "deny")
    refused = await served.client.call_tool("execute", PUSH, thread="t")
    assert (refused.verdict, refused.edited_arguments) == ("deny", None)


async def test_grants_are_listed_and_revoked(served: Served) -> None:
    approval_id = await served.asked()
    assert await served.client.grants() == []
    await served.client.resolve_approval(approval_id, "thread")
    (grant,) = await served.client.grants(thread="t", limit=1)
    assert (grant.thread, grant.run_id, grant.approval_id, grant.granted_by) == ("t", "", approval_id, "alk_ab..")
    assert "argv" in grant.rule
    assert grant.in_force
    assert grant.revoked_at is None
    assert await served.client.grants(thread="another") == []
    revoked = await served.client.revoke_grant(grant.id)
    assert revoked.revoked_at is not None
    assert revoked.revoked_at >= revoked.created_at
    assert not revoked.in_force
    assert await served.client.grants() == []
    assert await served.client.grants(include_ended=True) == [revoked]
    assert await served.asked() != approval_id
    with pytest.raises(NotFound, match="approvals grants"):
        await served.client.revoke_grant("grant_none")


async def test_lists_and_watchers_show_what_was_cut_and_get_it_whole_by_asking(served: Served) -> None:
    command = f"git push {' '.join(['x' * 1000] * 20)}"
    asked = [
        (await served.client.call_tool("execute", {"command": command, "timeout_s": 5}, thread=f"t{n}")).approval_id
        for n in range(6)
    ]
    small = await served.asked()
    request, metadata = pb.ListApprovalsRequest(page_size=200), (("authorization", "Bearer alk_x"),)
    page = await served.client._method(pb.ListApprovalsRequest)(request, metadata=metadata)
    assert page.ByteSize() < 50_000
    listed = {one.id: one for one in await served.client.approvals()}
    assert set(listed) == {small, *asked}
    for id_ in asked:
        one = listed[id_]
        assert (one.arguments, one.proposed_rule, one.arguments_cut) == ({}, "", True)
        assert one.arguments_size_bytes > 20_000
    assert listed[small] == await served.client.approval(small)
    assert (listed[small].arguments["command"], listed[small].arguments_cut) == (PUSH["command"], False)
    whole = await served.client.approval(asked[0])
    assert (whole.arguments["command"], whole.arguments_cut) == (command, False)
    watched = served.client.watch_approvals()
    seen = [await anext(watched) for _ in range(7)]
    assert {one.id for one in seen if one.arguments_cut} == set(asked)
    resolved = await served.client.resolve_approval(asked[0], "deny")
    assert resolved.arguments["command"] == command
    assert (await anext(watched)).arguments_cut


@pytest.mark.parametrize("mode", ["", "Follow", "pinned", None])
async def test_a_wrong_policy_mode_is_said_and_starts_nothing(served: Served, mode: Any) -> None:
    # The server here has no runs: what reached it would be another error.
    with pytest.raises(InvalidArgument, match="not one of pin, follow"):
        await served.client.start_run("go", policy_mode=mode)
    with pytest.raises(InvalidArgument, match="not one of pin, follow"):
        await anext(served.client.run("go", policy_mode=mode))
