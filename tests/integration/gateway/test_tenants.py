"""Two tenants that cannot see each other's runs, threads, files or sandboxes; and what a bad credential gets."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from gateway.client import Client
from gateway.composition.services import SERVICES
from gateway.errors import NotFound, Unauthenticated
from tests.docker_state import containers_of
from tests.integration.gateway.conftest import Pair

SHARED_THREAD = "same-name"


async def test_the_same_thread_name_is_two_sandboxes(client: Client, strict: Client, pair: Pair) -> None:
    await client.write_file(SHARED_THREAD, "/workspace/secret-of-default", b"x")
    before = set(containers_of(pair.home.instance))
    with pytest.raises(NotFound):
        await strict.read_file(SHARED_THREAD, "/workspace/secret-of-default")
    assert set(containers_of(pair.home.instance)) > before


async def test_processes_of_another_tenant_cannot_be_seen(client: Client, strict: Client) -> None:
    listed = await strict.call_tool("execute", {"command": "ls /proc"}, thread=SHARED_THREAD)
    pids = [name for name in listed.content.split() if name.isdigit()]
    assert 0 < len(pids) < 10


async def test_a_sandbox_of_another_tenant_is_none(client: Client, strict: Client) -> None:
    await client.call_tool("execute", {"command": "true"}, thread="of-default")
    mine = await client.get_sandbox("of-default")
    assert mine.id not in {one.id async for one in strict.sandboxes()}
    for ask in (strict.get_sandbox, strict.stop_sandbox):
        said = set()
        for thread in ("of-default", "of-nobody"):
            with pytest.raises(NotFound) as refused:
                await ask(thread)
            said.add((str(refused.value).replace(thread, "THREAD"), tuple(refused.value.details)))
        assert len(said) == 1, "not yours and not there are one answer"
    assert await client.get_sandbox("of-default") == mine


async def test_every_rpc_needs_a_key(pair: Pair) -> None:
    with grpc.insecure_channel(pair.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(SERVICES) <= set(database.get_services())
        walked = 0
        for service in SERVICES:
            descriptor = database.FindFileContainingSymbol(service)
            for described in descriptor.service:
                for method in described.method:
                    call = channel.stream_stream(f"/{service}/{method.name}")
                    for metadata in ((), (("authorization", "Bearer alk_guess"),), (("authorization", "Basic x"),)):
                        with pytest.raises(grpc.RpcError) as refused:
                            list(call(iter([b""]), metadata=metadata))
                        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                        walked += 1
    assert walked >= 27


async def test_health_answers_without_a_key(pair: Pair) -> None:
    async with grpc.aio.insecure_channel(pair.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", *SERVICES):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_key_that_is_not_known_is_unauthenticated(pair: Pair) -> None:
    async with Client(pair.address, "alk_guess") as unknown:
        with pytest.raises(Unauthenticated):
            await unknown.list_tools()
