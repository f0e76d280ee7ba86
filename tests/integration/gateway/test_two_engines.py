"""Two gateways of one database on two engines: a run goes where its files are, and on when their engine is gone."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import psycopg
import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client, Event, OtherEngine
from tests import gateway_process
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, airlock, airlock_process, make_home, served
from tests.integration.gateway.on_other_engine import ENGINE

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
READS = [Turn(calls=(Call("execute", {"command": "cat kept"}),)), Turn(expect=["what was kept"], say="I see it.")]


@contextmanager
def on_other_engine() -> Iterator[None]:
    """Have `airlock` started as on another machine, until the block ends."""
    program = (sys.executable, "-m", "tests.integration.gateway.on_other_engine")
    with mock.patch.object(gateway_process, "AIRLOCK", program):
        yield


def _homes(directory: Path, url: str, model: ScriptedModelServer) -> tuple[Home, Home]:
    one, two = (make_home(directory / name) for name in ("one", "two"))
    for home in (one, two):
        home.configure(
            database_url=url,
            # They are on one engine in truth.
            sandbox={"channel_dir": str(directory / "channels")},
            model={"base_url": model.base_url, "name": "scripted"},
        )
    return one, two


async def _run(client: Client) -> tuple[str, list[Event]]:
    """Return a run and all its events."""
    run = await client.start_run("what is kept?", thread="t")
    async with asyncio.timeout(90):
        return run.id, [event async for event in client.watch_run(run.id)]


def _hosted(url: str, run_id: str) -> str | None:
    """Return the engine of the gateway that hosts a run, or did."""
    query = "SELECT g.engine FROM runs r JOIN gateways g ON g.id = r.gateway WHERE r.id = %s"
    with psycopg.connect(url) as database:
        found = database.execute(query, (run_id,)).fetchone()
    return found[0] if found else None


async def _until_unserved(url: str, engine: str) -> None:
    query = "SELECT 1 FROM gateways WHERE engine = %s AND expires_us > extract(epoch FROM clock_timestamp()) * 1000000"
    async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(url, autocommit=True) as database:
        while await (await database.execute(query, (engine,))).fetchone() is not None:
            await asyncio.sleep(0.05)


async def test_a_run_goes_where_its_files_are_and_elsewhere_only_once_they_were_adopted(
    tmp_path: Path, postgres_url: str
) -> None:
    async with ScriptedModelServer(READS * 3) as model:
        one, two = await asyncio.to_thread(_homes, tmp_path, postgres_url, model)
        made = await asyncio.to_thread(
            airlock, "key", "create", "--tenant", "default", "--config", str(one.config), "--json"
        )
        key = str(json.loads(made.stdout)["key"])
        adopting = ("thread", "adopt", "--yes", "--json", "--config", str(two.config))
        with served(one, ENV) as first:
            async with Client(first.address, key) as here:
                # The second gateway finds it, and so takes the engine for one that has a new id.
                await here.write_file("t", "/workspace/kept", b"what was kept")
                with on_other_engine(), served(two, ENV) as second:
                    async with Client(second.address, key) as there:
                        with psycopg.connect(postgres_url) as database:
                            (engine,) = database.execute("SELECT engine FROM threads WHERE name = 't'").fetchone() or (
                                "",
                            )
                        with pytest.raises(OtherEngine, match=engine):
                            await there.call_tool("execute", {"command": "true"}, thread="t")
                        for client in (there, here):
                            run_id, events = await _run(client)
                            assert events[0].type == "run_started"
                            assert events[-1].payload["answer"] == "I see it."
                            assert _hosted(postgres_url, run_id) == engine

                        refused = await asyncio.to_thread(airlock_process, *adopting, engine, check=False)
                        assert (refused.returncode, "still serves engine" in refused.stdout) == (2, True)
                        first.kill()
                        await _until_unserved(postgres_url, engine)
                        with pytest.raises(OtherEngine, match="No gateway is currently serving that engine"):
                            await there.start_run("go", thread="t")
                        adopted = await asyncio.to_thread(airlock_process, *adopting, engine)
                        assert json.loads(adopted.stdout) == {"from": engine, "to": ENGINE, "threads": {"default": 1}}
                        # Both are one engine in truth, so the files are there.
                        _, events = await _run(there)
                        assert events[-1].payload["answer"] == "I see it."
                        again = await asyncio.to_thread(airlock_process, *adopting, engine, check=False)
                        assert again.returncode == 2
                        assert f"engines with threads: {ENGINE} (1, served by a gateway)" in again.stdout
        assert model.failures == []
    assert containers_of(two.instance) == []
    assert volumes_of(two.instance) == []
