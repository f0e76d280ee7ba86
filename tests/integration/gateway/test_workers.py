"""`airlock serve --workers 2`: two processes, one port, one sandbox a thread."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from airlock import wire as client_wire
from gateway.client import Client, NotFound, OtherEngine, SandboxBusy, Unavailable
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, Served, airlock, airlock_process, make_home, served

# With two workers, all of them at one of the two is a matter of one in 32,768.
_CLIENTS = 16
_CALLS_METRIC = "airlock_tenant_tool_calls_total"


@pytest.fixture(autouse=True)
def connections_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each client make a connection of its own, for the kernel to give to either worker."""
    monkeypatch.setattr(client_wire, "_OPTIONS", (*client_wire._OPTIONS, ("grpc.use_local_subchannel_pool", 1)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


@pytest.fixture
def pair(home: Home) -> Iterator[Served]:
    with served(home, None, "--workers", "2") as gateway:
        yield gateway
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []
    left = sorted(path.name for path in (home.config.parent / "state" / "channels").iterdir())
    assert left == [f"{home.instance}.database", "identity"]


@asynccontextmanager
async def clients(gateway: Served, home: Home) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(gateway.address, home.key)) for _ in range(_CLIENTS)]


def workers_of(gateway: Served) -> set[int]:
    """Return the processes that a gateway's parent has."""
    pid = gateway.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()}


def processor_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_what_one_connection_writes_every_other_reads_and_there_is_one_container(
    pair: Served, home: Home
) -> None:
    workers = workers_of(pair)
    assert len(workers) == 2
    before = {process: processor_ticks(process) for process in workers}
    async with clients(pair, home) as all_:
        calls = [
            one.call_tool("execute", {"command": f"echo {number} > /tmp/{number}"}, thread="t")
            for number, one in enumerate(all_)
        ]
        assert [result.exit_code for result in await asyncio.gather(*calls)] == [0] * _CLIENTS
        assert len(containers_of(home.instance)) == 1
        seen = await asyncio.gather(
            *(one.call_tool("execute", {"command": "ls /tmp | wc -l"}, thread="t") for one in all_)
        )
        assert {result.content.strip() for result in seen} == {str(_CLIENTS)}
    assert all(processor_ticks(process) > before[process] for process in workers), "both of them worked"


async def test_calls_on_the_other_worker_go_on_when_one_is_killed_and_it_comes_back(pair: Served, home: Home) -> None:
    doomed, other = sorted(workers_of(pair))
    lost: list[int] = []
    done: list[int] = []
    stop = asyncio.Event()

    async def call_on_and_on(number: int, one: Client) -> None:
        while not stop.is_set():
            try:
                result = await one.call_tool("execute", {"command": "echo on"}, thread=f"t{number % 2}")
            except Unavailable:
                lost.append(number)
                continue
            if result.outcome == "interrupted":  # what the killed one had begun is not begun again
                lost.append(number)
                continue
            assert result.content == "on\n", result
            done.append(number)

    async with clients(pair, home) as all_:
        for thread in ("t0", "t1"):
            await all_[0].call_tool("execute", {"command": f"touch /tmp/{thread}"}, thread=thread)
        calling = [asyncio.create_task(call_on_and_on(number, one)) for number, one in enumerate(all_)]
        async with asyncio.timeout(120):
            while len(set(done)) < _CLIENTS:
                await asyncio.sleep(0.01)
            os.kill(doomed, signal.SIGKILL)
            while len(workers_of(pair)) < 2 or doomed in workers_of(pair):
                await asyncio.sleep(0.01)
            done.clear()
            while len(set(done)) < _CLIENTS:
                await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*calling)
        assert other in workers_of(pair)
        assert len(set(lost)) < _CLIENTS, "some were on the other worker, and saw nothing of it"
        assert len(containers_of(home.instance)) == 2
        for thread in ("t0", "t1"):
            kept = await all_[0].call_tool("execute", {"command": f"ls /tmp/{thread}"}, thread=thread)
            assert kept.exit_code == 0, "the sandbox is the one that both used"


async def test_a_run_whose_worker_is_killed_moves_to_another_process_under_its_watchers(
    home: Home, database_url: str
) -> None:
    home.store_in(database_url)
    calls = [Turn(calls=(Call("execute", {"command": f"echo {number} >> log; sleep 0.1"}),)) for number in range(20)]
    async with ScriptedModelServer([*calls, Turn(say="Done.")]) as model:
        home.configure(model={"base_url": model.base_url, "name": "scripted"}, recovery={"lease_s": 4.0})
        with served(home, {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}, "--workers", "2") as gateway:
            async with clients(gateway, home) as all_:
                started = (one.start_run("go", thread="t", request_id="r") for one in all_)
                (run,) = {run.id for run in await asyncio.gather(*started)}
                watched = [asyncio.create_task(_followed(one, run)) for one in all_]
                await _logged(all_[0])
                host = _gateway_of(home, run)
                index = next(n for n in (0, 1) if _slot(home, n) == host)
                (doomed,) = (one for one in workers_of(gateway) if f"{index}/2@" in _command_line(one))
                os.kill(doomed, signal.SIGKILL)
                reported = await asyncio.gather(*watched)
                assert len({tuple(events) for events in reported}) == 1, "each saw each event once"
                assert (reported[0][0], reported[0][-1]) == ("run_started", "run_finished")
                # Once; more often where a loaded machine keeps a worker from renewing its lease in time.
                moved = reported[0].count("run_resumed")
                assert moved >= 1
                assert (await all_[0].get_run(run)).status == "completed"
                assert _gateway_of(home, run) != host
                lines = (await all_[0].read_file("t", "/workspace/log")).split()
                assert len(lines) == len(set(lines)), "nothing was done twice"
                assert len(lines) >= len(calls) - moved, "but for calls that were interrupted all was done"


async def _followed(client: Client, run: str) -> list[str]:
    async with asyncio.timeout(120):
        return [event.type async for event in client.watch_run(run)]


async def _logged(client: Client) -> None:
    async with asyncio.timeout(60):
        while (await client.call_tool("execute", {"command": "test -s log"}, thread="t")).exit_code:
            pass


def _gateway_of(home: Home, run: str) -> str:
    return str(home.rows(f"SELECT gateway FROM runs WHERE id = '{run}'")[0][0])


def _slot(home: Home, index: int) -> str:
    return (home.config.parent / "state" / f"slot-{index}").read_text(encoding="ascii").strip()


def _command_line(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace")


async def test_each_worker_is_scraped_where_the_banner_says(home: Home) -> None:
    home.configure(telemetry={"metrics_listen": "127.0.0.1:0"})
    with served(home, None, "--workers", "2") as gateway:
        async with clients(gateway, home) as all_:
            await asyncio.gather(*(one.call_tool("execute", {"command": "true"}, thread="t") for one in all_))
        said = (home.config.parent / "serve.log").read_text(encoding="utf-8")
        (line,) = re.findall(r"^ *metrics +(.+?) *$", said, re.MULTILINE)
        addresses = line.split(", ")
        assert len(set(addresses)) == 2
        counted = [await asyncio.to_thread(_calls_reported, address) for address in addresses]
        assert sum(counted) == _CLIENTS
        assert all(counted), "both of them worked"


def _calls_reported(address: str) -> int:
    """Return how many tool calls a worker says that it made."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        scrape = answer.read().decode()
    return int(sum(float(line.rpartition(" ")[2]) for line in scrape.splitlines() if line.startswith(_CALLS_METRIC)))


async def test_workers_stop_when_their_parent_is_killed(home: Home) -> None:
    with served(home, None, "--workers", "2") as gateway:
        async with Client(gateway.address, home.key) as airlock_:
            await airlock_.call_tool("execute", {"command": "true"})
        workers = workers_of(gateway)
        gateway.kill()
        async with asyncio.timeout(60):
            while any(Path(f"/proc/{process}/cmdline").exists() for process in workers):
                await asyncio.sleep(0.05)
    log = (home.config.parent / "serve.log").read_text(encoding="utf-8")
    assert containers_of(home.instance) == [], f"they did not stop in order:\n{log}"
    assert volumes_of(home.instance) == []


async def test_sandboxes_are_listed_shown_and_stopped_through_either_worker(pair: Served, home: Home) -> None:
    env = {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": home.key}
    async with clients(pair, home) as all_:
        for thread in ("a", "b"):
            await all_[0].call_tool("execute", {"command": "true"}, thread=thread)
        found = [one async for one in all_[1].sandboxes()]
        assert sorted(one.thread for one in found) == ["a", "b"]
        assert [one.id for one in found] == sorted(one.id for one in found)
        assert await all_[2].get_sandbox("a") in found
        busy = asyncio.create_task(all_[3].call_tool("execute", {"command": "touch /tmp/x; sleep 60"}, thread="a"))
        while (await all_[0].call_tool("execute", {"command": "test -e /tmp/x"}, thread="a")).exit_code:
            pass
        for one in all_:
            with pytest.raises(SandboxBusy):
                await one.stop_sandbox("a")
        busy.cancel()
        stopped = await all_[4].stop_sandbox("b")
        assert (stopped.thread, stopped.state) == ("b", "idle_stopped")
        assert await all_[5].stop_sandbox("b") == stopped == await all_[5].get_sandbox("b")
        assert [one.id async for one in all_[5].sandboxes(state="idle_stopped")] == [stopped.id]
        with pytest.raises(NotFound) as not_there:
            await all_[5].stop_sandbox("never")
        with pytest.raises(NotFound) as not_there_either:
            await all_[5].get_sandbox("never")
        assert str(not_there.value) == str(not_there_either.value)
    listed = airlock("sandbox", "list", env=env)
    assert "a " in listed.stdout
    assert "idle_stopped" in listed.stdout
    gone = airlock("sandbox", "get", "never", "--json", env=env, check=False)
    assert gone.returncode == 3
    assert '"reason": "NOT_FOUND"' in gone.stdout


async def test_sandbox_usage_is_reported_by_the_worker_that_has_it_and_by_the_other(pair: Served, home: Home) -> None:
    async with clients(pair, home) as all_:
        hold = "head -c 30000000 /dev/zero > /tmp/held"
        assert (await all_[0].call_tool("execute", {"command": hold}, thread="used")).exit_code == 0
        reported = [await one.get_sandbox_stats("used") for one in all_]
        assert len({one.id for one in reported}) == 1
        for one in reported:
            assert one.memory_bytes is not None
            assert one.memory_bytes > 30_000_000, "files in /tmp are memory"
            assert one.cpu_s is not None
            assert one.pids is not None
        # Files are counted by its daemon, which only who has calls of the thread asks.
        (known_bytes,) = {one.tmp.used_bytes for one in reported if one.tmp is not None}
        assert 30_000_000 <= known_bytes < 30_100_000, "in whole pages"
        await all_[0].delete_sandbox("used")


async def test_a_thread_whose_files_are_on_another_engine_is_refused(pair: Served, home: Home) -> None:
    async with clients(pair, home) as all_:
        await all_[0].call_tool("execute", {"command": "true"}, thread="mine")
        path = home.config.parent / "state" / "airlock.db"
        with closing(sqlite3.connect(path, timeout=30)) as database, database:
            (engine,) = database.execute("SELECT engine FROM threads WHERE name = 'mine'").fetchone()
            assert engine
            made = (
                "INSERT INTO threads (id, tenant, name, created_us, engine) VALUES ('thr_x', 'default', 'far', 1, 'E2')"
            )
            database.execute(made)
        for one in all_:
            with pytest.raises(OtherEngine, match="E2") as refused:
                await one.call_tool("execute", {"command": "true"}, thread="far")
            assert refused.value.details == {"engine": "E2"}
        assert len(containers_of(home.instance)) == 1


def test_a_second_gateway_on_the_same_state_directory_is_refused(pair: Served, home: Home) -> None:
    refused = airlock_process(
        *("serve", "--config", str(home.config), "--listen", "127.0.0.1:0", "--workers", "2"), check=False
    )
    assert refused.returncode == 2
    assert "in use by another gateway" in refused.stderr


def test_plain_text_beyond_loopback_is_refused(home: Home) -> None:
    refused = airlock_process("serve", "--config", str(home.config), "--listen", "0.0.0.0:0", check=False)
    assert refused.returncode == 2
    assert "--insecure-plaintext" in refused.stderr
