"""A gateway that is configured to use another channel directory, or a copy of a database, does not start.

It would take the sandboxes of the others for orphans. Each test has a gateway with a live sandbox, and shows that a
second one that disagrees leaves that sandbox alone.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from gateway.client import Client
from tests import gateway_process
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, airlock, airlock_process, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}


@asynccontextmanager
async def live_sandbox(home: Home, key: str) -> AsyncIterator[None]:
    """Have a gateway with a background process, and see at the end that the process ran all the time."""
    with served(home, ENV) as gateway:
        async with Client(gateway.address, key) as client:
            started = await client.start_process(["sleep", "600"], thread="t")
            yield
            running = await client.processes("t", running=True)
            assert [process.id for process in running.processes] == [started.id]
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def refused(home: Home) -> str:
    """Start a gateway that must not start; return its error."""
    started = await asyncio.to_thread(
        airlock_process, "serve", "--config", str(home.config), "--listen", "127.0.0.1:0", "--json", check=False
    )
    assert started.returncode == 2, started.stdout + started.stderr
    return str(json.loads(started.stdout)["error"])


async def doctor_says(home: Home, what: str) -> dict[str, str]:
    found = await asyncio.to_thread(airlock, "doctor", "--config", str(home.config), "--json", check=False)
    return next(one for one in json.loads(found.stdout)["findings"] if one["what"] == what)


def key_of(home: Home) -> str:
    return home.make_key("default")


def copied(home: Home, directory: Path) -> Home:
    """Return a home with a copy of another's database beside the original."""
    made = make_home(directory)
    state = directory / "state"
    shutil.rmtree(state)
    state.mkdir(mode=0o700)
    with sqlite3.connect(home.config.parent / "state" / "airlock.db") as source:
        with sqlite3.connect(state / "airlock.db") as target:
            source.backup(target)
        target.close()
    source.close()
    (state / "airlock.db").chmod(0o600)
    return made


@pytest.fixture
def homes(tmp_path: Path, postgres_url: str) -> tuple[Home, Home]:
    """Two gateways of one database and engine, each with its sockets in its own state directory."""
    one, two = (make_home(tmp_path / name) for name in ("one", "two"))
    for home in (one, two):
        home.configure(database_url=postgres_url)
    return one, two


async def test_a_gateway_with_another_state_directory_is_refused_until_the_channels_are_moved(
    homes: tuple[Home, Home],
) -> None:
    one, two = homes
    theirs, ours = (home.config.parent / "state" / "channels" for home in homes)
    key = await asyncio.to_thread(key_of, one)
    async with live_sandbox(one, key):
        error = await refused(two)
        assert f"use the channel directory {theirs}" in error
        assert f"mv {theirs} {ours}" in error
        assert not ours.exists(), "what was refused left nothing behind"
        assert (await doctor_says(two, "channel directory"))["fix"] == error
        assert (await doctor_says(one, "channel directory"))["state"] == "ok"
    await refused(two)  # the order of starts makes no difference
    theirs.rename(ours)
    with served(two, ENV):
        assert f"use the channel directory {ours}" in await refused(one)


async def test_a_directory_that_is_lost_is_made_again_once_its_gateway_is_gone(homes: tuple[Home, Home]) -> None:
    one, two = homes
    channels = one.config.parent / "state" / "channels"
    with served(one, ENV):
        pass
    shutil.rmtree(channels)
    identity = (await refused(two)).partition("echo ")[2].partition(" ")[0]
    with served(one, ENV):
        assert (channels / "identity").read_text().strip() == identity


async def test_a_copy_of_a_database_is_refused_on_the_engine_of_the_original(tmp_path: Path) -> None:
    original = await asyncio.to_thread(make_home, tmp_path / "one")
    async with live_sandbox(original, original.key):
        copy = await asyncio.to_thread(copied, original, tmp_path / "two")
        error = await refused(copy)
        assert "If this database is a copy of another, give its gateway an engine of its own" in error

        shared = {"channel_dir": str(original.config.parent / "state" / "channels")}
        copy.configure(sandbox=shared)
        error = await refused(copy)
        assert f"in use by a gateway whose database is {original.config.parent / 'state' / 'airlock.db'}" in error
        assert (await doctor_says(copy, "database of channels"))["fix"] == error

        # The state directory with all that is in it.
        shutil.copytree(
            original.config.parent / "state" / "channels",
            copy.config.parent / "state" / "channels",
            ignore=lambda _, names: [name for name in names if name != "identity"],
        )
        copy.configure(sandbox={"channel_dir": None})
        assert "is a copy of" in await refused(copy)


async def test_a_copy_of_a_database_is_refused_in_the_snapshots_of_the_original(tmp_path: Path) -> None:
    original = await asyncio.to_thread(make_home, tmp_path / "one")
    original.configure(sandbox={"engine": "memory"})
    with served(original, ENV):
        copy = await asyncio.to_thread(copied, original, tmp_path / "two")
        snapshots = original.config.parent / "state" / "snapshots"
        copy.configure(sandbox={"engine": "memory"}, snapshots_dir=str(snapshots))
        assert f"{snapshots} is in use by a gateway" in await refused(copy)
    with served(copy, ENV):  # it replaces the original
        assert "is in use by a gateway" in await refused(_with_snapshots(original, snapshots))


def _with_snapshots(home: Home, directory: Path) -> Home:
    home.configure(snapshots_dir=str(directory))
    return home


async def test_two_databases_on_one_engine_leave_each_other_alone_in_one_directory_too(tmp_path: Path) -> None:
    one, two = (make_home(tmp_path / name) for name in ("one", "two"))
    for home in (one, two):
        home.configure(sandbox={"channel_dir": str(tmp_path / "channels")})
    async with live_sandbox(one, one.key), live_sandbox(two, two.key):
        assert (await doctor_says(two, "channel directory"))["state"] == "ok"


async def test_one_engine_under_two_ids_has_one_directory(homes: tuple[Home, Home]) -> None:
    one, two = homes
    key = await asyncio.to_thread(key_of, one)
    async with live_sandbox(one, key):
        with under_another_id():
            channels = one.config.parent / "state" / "channels"
            assert f"use the channel directory {channels}" in await refused(two)
            two.configure(sandbox={"channel_dir": str(channels)})
            with served(two, ENV):  # it finds the engine's containers, and so knows that the engine is the same
                pass
    assert "the engine has a new id" in (two.config.parent / "serve.log").read_text(encoding="utf-8")


async def test_two_engines_with_one_directory_are_refused(homes: tuple[Home, Home]) -> None:
    one, two = homes
    channels = one.config.parent / "state" / "channels"
    two.configure(sandbox={"channel_dir": str(channels)})
    with served(one, ENV), under_another_id():  # an engine without anything of this database's
        assert "Give each engine a directory of its own" in await refused(two)


@contextmanager
def under_another_id() -> Iterator[None]:
    """Have the engine under another id, as after it lost its own, until the block ends."""
    program = (sys.executable, "-m", "tests.integration.gateway.on_other_engine")
    with mock.patch.object(gateway_process, "AIRLOCK", program):
        yield
