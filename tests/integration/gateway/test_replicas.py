"""Two gateways of one database and one engine, each with a state directory of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.models.scripted_model_server import ScriptedModelServer, Turn
from gateway.client import Client
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served

_EACH = 3
ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer([Turn(say="Done.")]) as server:
        yield server


@pytest.fixture
def homes(tmp_path: Path, postgres_url: str, model: ScriptedModelServer) -> list[Home]:
    made = [make_home(tmp_path / name) for name in ("one", "two")]
    for home in made:
        home.configure(
            database_url=postgres_url,
            sandbox={"channel_dir": str(tmp_path / "channels")},
            model={"base_url": model.base_url, "name": "scripted"},
        )
    return made


@pytest.fixture
def key(homes: list[Home]) -> str:
    """A key in the database that both share."""
    return homes[0].make_key("default")


@pytest.fixture
async def clients(homes: list[Home], key: str) -> AsyncIterator[list[Client]]:
    """Clients of either in turn."""
    with served(homes[0], ENV) as one, served(homes[1], ENV) as two:
        async with AsyncExitStack() as stack:
            addresses = [one.address, two.address] * _EACH
            yield [await stack.enter_async_context(Client(address, key)) for address in addresses]
    assert containers_of(homes[0].instance) == []
    assert volumes_of(homes[0].instance) == []


async def test_what_both_are_asked_for_under_one_request_id_is_done_once(
    clients: list[Client], model: ScriptedModelServer
) -> None:
    command = {"command": "echo once >> log; sleep 0.3; cat log"}
    asked = [client.call_tool("execute", command, thread="t", request_id="call") for client in clients]
    results = await asyncio.gather(*asked)
    assert {(result.outcome, result.content) for result in results} == {("exited", "once\n")}
    assert len({result.call_id for result in results}) == 1
    later = await clients[0].call_tool("execute", command, thread="t", request_id="call")
    assert later.content == "once\n"
    assert await clients[1].read_file("t", "/workspace/log") == b"once\n"

    runs = await asyncio.gather(*(client.start_run("go", thread="r", request_id="run") for client in clients))
    (run_id,) = {run.id for run in runs}
    followed = await asyncio.gather(*(_followed(client, run_id) for client in clients))
    assert {events[-1] for events in followed} == {"run_finished"}
    assert len({tuple(events) for events in followed}) == 1, "either tells of a run that the other hosts"
    assert len(model.requests) == 1


async def _followed(client: Client, run_id: str) -> list[str]:
    async with asyncio.timeout(60):
        return [event.type async for event in client.watch_run(run_id)]
