"""Approvals over real gateways: runs that wait through crashes, answers from elsewhere, keys that may answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import grpc.aio
import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from airlock.v1 import approval_service_pb2 as pb
from gateway.client import Client
from gateway.errors import AlreadyResolved, ApprovalPending, NotFound, ScopeMissing, ThreadBusy
from gateway.v1 import approval_service_pb2_grpc as grpc_pb
from tests.gateway_process import Home, Served, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
POLICY = """\
version: 1
description: Deploying is looked at.
rules:
  - id: files
    tools: [ls, read_file, write_file, edit_file, glob, grep]
    effect: allow
    reason: The sandbox is the agent's.
  - id: commands
    tools: [execute]
    effect: allow
    reason: The sandbox is the agent's.
  - id: deploys
    tools: [execute]
    argv: [[touch, deployed]]
    effect: ask
    reason: A deploy is looked at by somebody.
  - id: secrets
    tools: [write_file]
    paths: [/workspace/secret/**]
    effect: ask
    reason: Secrets are looked at.
"""
DEPLOY = {"command": "touch deployed"}


class Approver:
    """Answers, with an approver's key."""

    def __init__(self, address: str, key: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub: Any = grpc_pb.ApprovalServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {key}"),)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()

    async def pending(self) -> list[pb.Approval]:
        request = pb.ListApprovalsRequest(status=pb.APPROVAL_STATUS_PENDING)
        return list((await self._stub.ListApprovals(request, metadata=self._metadata)).approvals)

    async def get(self, approval_id: str) -> pb.Approval:
        request = pb.GetApprovalRequest(approval_id=approval_id)
        return (await self._stub.GetApproval(request, metadata=self._metadata)).approval

    async def watch(self) -> AsyncIterator[pb.WatchApprovalsResponse]:
        async for said in self._stub.WatchApprovals(pb.WatchApprovalsRequest(), metadata=self._metadata):
            yield said

    async def resolve(self, approval_id: str, answer: pb.Answer.ValueType, **more: str) -> pb.Approval:
        request = pb.ResolveApprovalRequest(approval_id=approval_id, answer=answer, **more)
        return (await self._stub.ResolveApproval(request, metadata=self._metadata)).approval


def _approver_key(home: Home, tenant: str = "default") -> str:
    return home.make_key(tenant, "approve")


async def _home(directory: Path, model: ScriptedModelServer | None = None, **sections: Any) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    (directory / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
    if model is not None:
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
    home.configure(**sections)
    return home


async def _waiting(client: Client, run_id: str) -> None:
    async with asyncio.timeout(30):
        while (await client.get_run(run_id)).status != "waiting":
            await asyncio.sleep(0.02)


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModelServer]:
    turns = [Turn(say="I deploy.", calls=(Call("execute", DEPLOY),)), Turn(say="Deployed.")]
    async with ScriptedModelServer(turns) as server:
        yield server


async def test_a_run_that_waits_outlives_two_killed_gateways(
    tmp_path: Path, database_url: str, model: ScriptedModelServer
) -> None:
    home = await _home(tmp_path / "home", model)
    home.store_in(database_url)
    key = await asyncio.to_thread(_approver_key, home)
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as client, Approver(gateway.address, key) as approver:
            run = await client.start_run("deploy", thread="t")
            await _waiting(client, run.id)
            asked = await approver.pending()
            assert [(one.run_id, one.tool, one.rule) for one in asked] == [(run.id, "execute", "deploys")]
            assert json.loads(asked[0].arguments_json)["command"] == DEPLOY["command"]
            with pytest.raises(ThreadBusy, match=run.id):
                await client.start_run("again", thread="t")
        gateway.kill()
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as client:
            assert (await client.get_run(run.id)).status == "waiting"
            assert "deployed" not in (await client.call_tool("ls", {"path": "/workspace"}, thread="t")).content
        gateway.kill()
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key) as client, Approver(gateway.address, key) as approver:
            watched = asyncio.create_task(_events(client, run.id))
            answered = await approver.resolve(asked[0].id, pb.ANSWER_ALLOW_ONCE)
            assert answered.resolved_by
            events = await asyncio.wait_for(watched, 60)
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            types = [event.type for event in events]
            assert types.count("run_suspended") == types.count("run_resumed") == 1
            assert (types[0], types[-1]) == ("run_started", "run_finished")
            assert events[-1].payload["answer"] == "Deployed."
            assert "deployed" in (await client.call_tool("ls", {"path": "/workspace"}, thread="t")).content
            assert (await approver.get(asked[0].id)).status == pb.APPROVAL_STATUS_USED
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await approver.resolve(asked[0].id, pb.ANSWER_DENY)
            assert late.value.code() is AlreadyResolved.code


async def _events(client: Client, run_id: str) -> list[Any]:
    return [event async for event in client.watch_run(run_id)]


async def test_an_answer_on_another_gateway_lets_the_run_go_on(
    tmp_path: Path, database_url: str, model: ScriptedModelServer
) -> None:
    one = await _home(tmp_path / "one", model)
    one.store_in(database_url)
    two = await _home(tmp_path / "two", model, database_url=database_url)
    for home in (one, two):
        home.configure(sandbox={"channel_dir": str(tmp_path / "channels")})
    key = await asyncio.to_thread(_approver_key, one)
    with served(one, ENV) as first, served(two, ENV) as second:
        async with Client(first.address, one.key) as client, Approver(second.address, key) as approver:
            run = await client.start_run("deploy", thread="t")
            asked = await _first(approver)
            await _waiting(client, run.id)
            await approver.resolve(asked.id, pb.ANSWER_DENY, message="not on a Friday")
            async with asyncio.timeout(60):
                events = await _events(client, run.id)
            finished = next(event.payload for event in events if event.type == "tool_call_finished")
            assert finished["verdict"] == "deny"
            assert "not on a Friday" in finished["content"]
            assert finished["approval_id"] == asked.id


async def _first(approver: Approver) -> pb.Approval:
    async with asyncio.timeout(30):
        async for said in approver.watch():
            if said.HasField("approval"):
                return said.approval
    raise AssertionError("nothing was asked")


async def test_calls_of_services_wait_and_run_once_they_are_approved(tmp_path: Path, database_url: str) -> None:
    home = await _home(tmp_path / "home")
    home.store_in(database_url)
    other = home.add_tenant("other", POLICY)
    key, strange = [await asyncio.to_thread(_approver_key, home, name) for name in ("default", "other")]
    with served(home) as gateway:
        await _calls(gateway, home.key, other, key, strange)


async def _calls(gateway: Served, user: str, other: str, key: str, strange: str) -> None:
    async with (
        Client(gateway.address, user) as client,
        Approver(gateway.address, key) as approver,
        Approver(gateway.address, strange) as stranger,
        Approver(gateway.address, user) as agent,
        Client(gateway.address, key) as no_client,
    ):
        result = await client.call_tool("execute", DEPLOY, thread="t")
        assert (result.verdict, result.outcome, result.rule) == ("ask", "waiting", "deploys")
        asked = (await approver.pending())[0]
        assert await stranger.pending() == []
        for attempt in (stranger.get(asked.id), stranger.resolve(asked.id, pb.ANSWER_ALLOW_ONCE)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await attempt
            assert refused.value.code() is NotFound.code
        with pytest.raises(grpc.aio.AioRpcError) as scope:
            await agent.resolve(asked.id, pb.ANSWER_ALLOW_ONCE)
        assert scope.value.code() is ScopeMissing.code
        with pytest.raises(ScopeMissing):
            await no_client.call_tool("execute", {"command": "true"}, thread="t")
        await approver.resolve(asked.id, pb.ANSWER_ALLOW_ONCE)
        ran = [await client.call_tool("execute", DEPLOY, thread="t") for _ in range(2)]
        assert [(one.verdict, one.outcome) for one in ran] == [("ask", "exited"), ("ask", "waiting")]
        with pytest.raises(ApprovalPending) as pending:
            await client.write_file("t", "/workspace/secret/a", b"1")
        await approver.resolve(pending.value.details["approval_id"], pb.ANSWER_ALLOW_ONCE)
        await client.write_file("t", "/workspace/secret/a", b"1")
        assert await client.read_file("t", "/workspace/secret/a") == b"1"
