"""Connections that are cut at random points: every call is done exactly once, and every stream is whole."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Cancelled, Client, NotFound, Retry
from tests.cutting_proxy import CuttingProxy
from tests.gateway_process import make_home, served
from tests.integration.gateway.conftest import Pair

PATIENT = Retry(attempts=200, first_s=0.01, longest_s=0.1, resume_s=60.0)
ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}


@pytest.mark.parametrize("seed", range(2))
async def test_every_call_is_done_once_however_often_its_connection_is_cut(
    pair: Pair, client: Client, seed: int
) -> None:
    thread, marks = f"cut-{seed}", [str(number) for number in range(40)]
    async with CuttingProxy(pair.address, seed) as proxy, Client(proxy.address, pair.key, retry=PATIENT) as cut:

        async def make(mark: str) -> str:
            result = await cut.call_tool("execute", {"command": f"echo {mark} >> log; echo did {mark}"}, thread=thread)
            assert (result.outcome, result.exit_code) == ("exited", 0), result
            return result.content

        places = asyncio.Semaphore(4)

        async def in_turn(mark: str) -> str:
            async with places:
                return await make(mark)

        said = await asyncio.gather(*(in_turn(mark) for mark in marks))
        assert said == [f"did {mark}\n" for mark in marks]
        assert proxy.cuts > 5
    log = await client.read_file(thread, "/workspace/log")
    assert sorted(log.decode().split(), key=int) == marks


async def test_live_output_is_whole_and_in_order_across_cuts(pair: Pair) -> None:
    # A whole result must fit between two cuts; the output before it makes most streams break.
    limits = {"least_bytes": 2_000, "most_bytes": 30_000}
    async with CuttingProxy(pair.address, 7, **limits) as proxy, Client(proxy.address, pair.key, retry=PATIENT) as cut:
        for _ in range(8):
            reported: list[bytes] = []
            command = "for n in $(seq 400); do echo line $n; done"
            result = await cut.call_tool(
                "execute",
                {"command": command},
                thread="live",
                on_output=lambda _, data, reported=reported: reported.append(data),
            )
            assert b"".join(reported) == result.stdout_bytes == b"".join(b"line %d\n" % n for n in range(1, 401))
        assert proxy.cuts


async def test_files_are_whole_across_cuts(pair: Pair, client: Client) -> None:
    data = bytes(range(256)) * 40
    limits = {"least_bytes": 2_000, "most_bytes": 40_000}
    async with CuttingProxy(pair.address, 3, **limits) as proxy, Client(proxy.address, pair.key, retry=PATIENT) as cut:
        for number in range(10):
            path = f"/workspace/{number}.bin"
            assert await cut.write_file("whole", path, data) == len(data)
            assert await client.read_file("whole", path) == data
            assert await cut.read_file("whole", path) == data
        assert proxy.cuts


async def test_a_file_that_no_connection_outlives_is_read_on_where_it_was(pair: Pair, client: Client) -> None:
    data = random.Random(1).randbytes(5_000_000)
    await client.write_file("whole", "long.bin", data)
    limits = {"least_bytes": 700_000, "most_bytes": 2_000_000}
    async with CuttingProxy(pair.address, 5, **limits) as proxy, Client(proxy.address, pair.key, retry=PATIENT) as cut:
        assert await cut.read_file("whole", "long.bin") == data
        assert (
            await cut.read_file("whole", "long.bin", offset=1_000_001, limit_bytes=3_000_000)
            == data[1_000_001:][:3_000_000]
        )
        assert proxy.cuts >= 3


async def test_processes_are_started_once_and_their_output_is_whole_across_cuts(pair: Pair, client: Client) -> None:
    whole = b"".join(b"line %d\n" % number for number in range(1, 2_001))
    # A page of output must fit between two cuts.
    limits = {"least_bytes": 1_000, "most_bytes": 40_000}
    async with CuttingProxy(pair.address, 5, **limits) as proxy, Client(proxy.address, pair.key, retry=PATIENT) as cut:
        for number in range(6):
            code = f"echo {number} >> /workspace/starts; for n in $(seq 2000); do echo line $n; done"
            started = await cut.start_process(["sh", "-c", code], thread="procs")
            pieces = [piece async for piece in cut.process_output("procs", started.id, follow=True)]
            assert b"".join(piece.data for piece in pieces) == whole
        assert proxy.cuts > 1
    starts = await client.read_file("procs", "/workspace/starts")
    assert starts.split() == [b"%d" % number for number in range(6)]


async def test_input_is_written_once_across_cuts_beside_other_writers(pair: Pair, client: Client) -> None:
    process = await client.start_process(["sh", "-c", "cat > /workspace/typed"], thread="typed", stdin=True)
    limits = {"least_bytes": 1_000, "most_bytes": 6_000}
    async with CuttingProxy(pair.address, 11, **limits) as proxy, Client(proxy.address, pair.key, retry=PATIENT) as cut:
        for number in range(60):
            await cut.write_process("typed", process.id, b"%d\n" % number)
            if number % 20 == 0:
                await client.write_process("typed", process.id, b"other\n")
        assert proxy.cuts > 3
    await client.write_process("typed", process.id, b"", end=True)
    ended = await client.wait_process("typed", process.id, timeout_s=20)
    typed = (await client.read_file("typed", "/workspace/typed")).split()
    assert [line for line in typed if line != b"other"] == [b"%d" % number for number in range(60)]
    assert (typed.count(b"other"), ended.stdin_taken_bytes) == (3, 170 + 18)


async def test_a_run_is_started_once_and_followed_whole_across_cuts(tmp_path: Path) -> None:
    turns = [
        Turn(say="I look.", calls=(Call("execute", {"command": "for n in $(seq 200); do echo $n; done"}),)),
        Turn(say="I look again.", calls=(Call("execute", {"command": "echo done"}),)),
        Turn(say="It is done."),
    ]
    async with ScriptedModelServer(turns) as model:
        home = await asyncio.to_thread(make_home, tmp_path / "home")
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        with served(home, ENV) as gateway:
            async with (
                CuttingProxy(gateway.address, 11, least_bytes=1_500, most_bytes=4_500) as proxy,
                Client(proxy.address, home.key, retry=PATIENT) as cut,
                Client(gateway.address, home.key) as direct,
            ):
                seen = [event async for event in cut.run("look", thread="t")]
                assert proxy.cuts
                (run,) = [run async for run in direct.list_runs()]
                assert seen == [event async for event in direct.watch_run(run.id)]
                assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))
                assert seen[-1].payload["status"] == "completed"
                again = await cut.start_run("look", thread="u", request_id="mine")
                assert (await cut.start_run("look", thread="u", request_id="mine")).id == again.id
                assert {event.type async for event in cut.watch_run(again.id)} >= {"run_started", "run_finished"}


async def test_a_call_is_ended_by_its_own_client_only(client: Client, strict: Client) -> None:
    sleeping = asyncio.create_task(
        client.call_tool("execute", {"command": "touch begun; sleep 30"}, thread="own", request_id="own-1")
    )
    while True:
        try:
            await client.read_file("own", "/workspace/begun")
            break
        except NotFound:
            await asyncio.sleep(0.05)
    from airlock.v1 import tool_service_pb2 as pb

    request = pb.CancelToolCallRequest(request_id="own-1")
    with pytest.raises(NotFound):
        await strict._unary(strict._method(pb.CancelToolCallRequest), request)
    assert not sleeping.done()
    await client._unary(client._method(pb.CancelToolCallRequest), request)
    with pytest.raises(Cancelled):
        await sleeping
    same = await client.call_tool("execute", {"command": "touch begun; sleep 30"}, thread="own", request_id="own-1")
    assert same.outcome == "cancelled"
