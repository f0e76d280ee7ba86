"""SandboxService over real gRPC, and an engine that is made up: which sandboxes are listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from gateway.client import Client
from gateway.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument
from gateway.policy.judge import Policy
from gateway.services.sandbox_service import SandboxService
from gateway.tenants import Tenant
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc
from sandbox.engine import LiveSandbox

TENANT = Tenant("t", Policy(PolicyDocument(version=1)), ModelSettings(), {})


class FakeEngine:
    """Seven sandboxes, every second one of another image, every third one of another runtime."""

    async def live(self, tenant: str) -> Sequence[LiveSandbox]:
        assert tenant == "t"
        return [
            LiveSandbox(
                id=f"s{number}",
                thread=f"thread-{number}",
                image="a" if number % 2 else "b",
                runtime="runc" if number % 3 else "runsc",
                created_s=1.0,
            )
            for number in range(7)
        ]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async def authenticate(context: Any) -> Tenant:
        return TENANT

    server = grpc.aio.server()
    keeper = SimpleNamespace(users=lambda tenant, thread: 0)
    service = SandboxService(cast(Any, FakeEngine()), cast(Any, keeper), cast(Any, None), authenticate)
    sandbox_service_pb2_grpc.add_SandboxServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "key") as made:
        yield made
    await server.stop(None)


async def test_sandboxes_are_listed_by_runtime_and_image(client: Client) -> None:
    async def listed(**given: str) -> list[str]:
        return [one.id async for one in client.sandboxes(**given)]

    assert await listed() == [f"s{number}" for number in range(7)]
    assert await listed(runtime="runsc") == ["s0", "s3", "s6"]
    assert await listed(image="a") == ["s1", "s3", "s5"]
    assert await listed(image="a", runtime="runsc") == ["s3"]
    assert await listed(runtime="none") == []


async def test_a_page_goes_on_within_its_own_query_only(client: Client) -> None:
    stub = cast(Any, client)._sandboxes
    first = await stub.ListSandboxes(pb.ListSandboxesRequest(page_size=2, image="a"))
    second = await stub.ListSandboxes(pb.ListSandboxesRequest(page_size=2, image="a", page_token=first.next_page_token))
    assert [[one.id for one in page.sandboxes] for page in (first, second)] == [["s1", "s3"], ["s5"]]
    assert second.next_page_token == ""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListSandboxes(pb.ListSandboxesRequest(image="b", page_token=first.next_page_token))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
