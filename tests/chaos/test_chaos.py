"""Whatever dies at whatever moment under load: no orphan, no lost workspace, no call without a typed outcome.

The seed is printed, and says what dies and what is called; not when things happen beside each other. A run goes on
until it has seen what it is for (seen.py). By environment AIRLOCK_CHAOS_SEEDS, several with commas between them, and
AIRLOCK_CHAOS_ROUNDS, how many deaths each at the least. Four seeds in a row have all grounds; these two have each part.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from airlock.retry import DEFAULT_RETRY
from gateway.client import Client
from sandbox.engines.docker.container_config import container_name
from tests.chaos.killer import KINDS, Killer, plan
from tests.chaos.leftovers import orphans, states_of, unfinished, wrong_histories
from tests.chaos.own_engine import EngineRefused, OwnEngine, own_engine
from tests.chaos.seen import not_seen
from tests.chaos.supervised import Supervised, supervised
from tests.chaos.thread_load import Report, ThreadLoad
from tests.gateway_process import Home, airlock, make_home
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE
from tests.integration.sandbox.made_images import busybox, image

SEEDS = [int(seed) for seed in os.environ.get("AIRLOCK_CHAOS_SEEDS", "1,2").split(",")]
ROUNDS = int(os.environ.get("AIRLOCK_CHAOS_ROUNDS", str(len(KINDS))))
TENANTS = ("one", "two")
THREADS = ("a", "b")
IDLE_S = 2.0
_SETTLED_S = 120.0
_LOG_LINES = 60
_SANDBOX = {"memory_mib": 128, "cpus": 1, "pids": 64, "workspace_mib": 64, "tmp_mib": 16}


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def engine(seed: int) -> Iterator[tuple[OwnEngine, str]]:
    """An engine and the name of an image on it; with an odd seed containers live on while the engine is down."""
    with image(busybox()) as name, own_engine(name, RUNTIME_IMAGE, live_restore=seed % 2 == 1) as own:
        yield own, name


@pytest.fixture
def database(request: pytest.FixtureRequest, seed: int) -> str | None:
    """A database of PostgreSQL; None, which is SQLite, and so one gateway, with the second and third of four seeds."""
    return None if seed % 4 in (2, 3) else str(request.getfixturevalue("postgres_url"))


async def test_whatever_dies_no_file_is_lost_nothing_is_left_and_each_call_reports_how_it_ended(
    tmp_path: Path, database: str | None, engine: tuple[OwnEngine, str], seed: int
) -> None:
    own, image_name = engine
    print(f"chaos: seed {seed}, {ROUNDS} rounds")
    channels = tmp_path / "channels"
    homes, keys = await asyncio.to_thread(_homes, tmp_path, database, own, image_name)
    report = Report()

    async def break_stopped(sandbox: str) -> bool:
        """Remove the container of a sandbox that is stopped; its files are not in it."""
        try:
            await asyncio.to_thread(own.docker, "rm", container_name(homes[0].instance, sandbox))
        except EngineRefused:
            return False
        return True

    async def unseen() -> list[str]:
        return await asyncio.to_thread(not_seen, report, homes)

    async with supervised(homes) as gateways:
        async with AsyncExitStack() as stack:
            threads = []
            for tenant, key in keys.items():
                # What a client asks again by itself is not seen here: the other tenant's does not.
                retry = DEFAULT_RETRY if tenant == TENANTS[0] else None
                made = [Client(one.address, key, retry=retry) for one in gateways]
                clients = [await stack.enter_async_context(client) for client in made]
                threads += [
                    ThreadLoad(
                        thread,
                        clients,
                        f"{seed} {tenant} {thread}",
                        report,
                        tenant=tenant,
                        idle_s=IDLE_S,
                        break_stopped=break_stopped,
                    )
                    for thread in THREADS
                ]
            await _under_load(threads, Killer(own, gateways, threads, report), seed, unseen)
            await asyncio.gather(*(one.serves() for one in gateways))
            await asyncio.gather(*(thread.check() for thread in threads))
            if not report.faults:
                await asyncio.gather(*(thread.check_snapshots() for thread in threads))
        if report.faults:
            raise AssertionError(_reported(seed, report, gateways))
        owners = [(thread.tenant, name) for thread in threads for name in thread.names]
        instance = homes[0].instance
        await _settled(
            report,
            lambda: [
                *orphans(own, homes[0], channels, owners),
                *unfinished(homes[0]),
                *wrong_histories(homes[0], states_of(own, instance)),
            ],
        )
    print("chaos:", json.dumps(dict(sorted(report.counts.items()))))
    report.faults += [f"in all the time there was no {what!r}" for what in await unseen()]
    report.faults += [f"a gateway exited {code}" for one in gateways for code in one.codes if code]
    report.faults += wrong_histories(homes[0], {})
    report.faults += _after_the_end(own, homes[0], channels)
    report.faults += await asyncio.to_thread(_broken_audits, homes[0])
    if report.faults:
        raise AssertionError(_reported(seed, report, gateways))


async def _under_load(
    threads: Sequence[ThreadLoad], killer: Killer, seed: int, unseen: Callable[[], Awaitable[Sequence[str]]]
) -> None:
    over = asyncio.Event()
    load = [asyncio.create_task(thread.run(over)) for thread in threads]
    try:
        await killer.run(plan(seed), ROUNDS, unseen)
    finally:
        over.set()
        await asyncio.gather(*load)


async def _settled(report: Report, wrong: Callable[[], Sequence[str]]) -> None:
    """Wait until nothing is wrong; what stays so is a fault."""
    deadline_s = time.monotonic() + _SETTLED_S
    while found := await asyncio.to_thread(wrong):
        if time.monotonic() > deadline_s:
            report.faults += found
            return
        await asyncio.sleep(0.5)


def _homes(directory: Path, url: str | None, own: OwnEngine, image_name: str) -> tuple[list[Home], dict[str, str]]:
    """Return the gateways of one database and one engine, two where it can have two, and a key of each tenant."""
    first = make_home(directory / "first")
    policy = yaml.safe_load((directory / "first" / "policies" / "default.yaml").read_text(encoding="utf-8"))
    policy["sandbox"] = {**_SANDBOX, "image": image_name}
    first.configure(
        **({"database_url": url} if url else {}),
        snapshots_dir=str(directory / "snapshots"),
        sandbox={
            "engine_url": own.url,
            "runtime_image": RUNTIME_IMAGE,
            "channel_dir": str(directory / "channels"),
            "idle_timeout_s": IDLE_S,
            "lifetime_s": 30.0,
            "max_stopped": 3,
            "pool_limit": 2,
            "pool_min": 1,
            "keep_workspaces": False,
        },
    )
    keys = {tenant: first.add_tenant(tenant, yaml.safe_dump(policy)) for tenant in TENANTS}
    if url is None:
        return [first], keys
    shutil.copytree(directory / "first", directory / "second", ignore=shutil.ignore_patterns("state"))
    return [first, Home(directory / "second" / first.config.name, first.key)], keys


def _after_the_end(own: OwnEngine, home: Home, channels: Path) -> list[str]:
    """Return what is left when all gateways have stopped in order."""
    labelled = ("--filter", f"label=airlock.instance={home.instance}")
    left = [*own.docker("ps", "-aq", *labelled).split(), *own.docker("volume", "ls", "-q", *labelled).split()]
    # Which directory and which database these are is known as long as the directory is there.
    left += [str(path) for path in channels.glob("**/*") if path.name not in {"identity", f"{home.instance}.database"}]
    return [f"{name} is left after the end" for name in left]


def _broken_audits(home: Home) -> list[str]:
    """Return the tenants whose chain of records does not hold."""
    wrong = []
    for tenant in TENANTS:
        verifying = ("audit", "verify", "--config", str(home.config), "--tenant", tenant, "--json")
        reported = json.loads(airlock(*verifying, check=False).stdout)
        wrong += [] if reported["whole"] and reported["records"] else [f"the audit of {tenant}: {reported}"]
    return wrong


def _reported(seed: int, report: Report, gateways: Sequence[Supervised]) -> str:
    """Return what is wrong, and the end of what each gateway wrote, but for the calls that it served."""
    logs = ["\n".join([f"--- {one.home.config.parent.name}", *_reporting(one.log)[-_LOG_LINES:]]) for one in gateways]
    return "\n".join([f"seed {seed}:", *report.faults, *logs])


def _reporting(log: str) -> list[str]:
    return [line for line in log.splitlines() if '"event": "tool call"' not in line]
