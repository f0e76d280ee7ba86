"""Many tenants at one gateway: each with a key and a client of its own, and what the processes use meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.cli.local_admin import local_admin
from gateway.client import Client
from gateway.config.config import Config
from tests.gateway_process import Home, Served, make_home, served

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Fleet:
    """A gateway, and a client for each of its tenants."""

    home: Home
    gateway: Served
    keys: Mapping[str, str]
    clients: Mapping[str, Client]

    def processes(self) -> Sequence[int]:
        """Return the gateway's process and its workers."""
        parent = self.gateway.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
        return [parent, *map(int, children)]

    def rss_bytes(self) -> int:
        """Return what they have in memory together."""
        statuses = (Path(f"/proc/{pid}/status").read_text(encoding="ascii") for pid in self.processes())
        return sum(int(found[1]) * 1024 for status in statuses if (found := _RSS.search(status)) is not None)

    def cpu_s(self) -> float:
        """Return the processor time that they have used."""
        return sum(cpu_s(Path(f"/proc/{pid}/stat")) for pid in self.processes())


@contextlib.asynccontextmanager
async def fleet(
    tenants: int,
    *options: str,
    env: Mapping[str, str] | None = None,
    at_end: Callable[[Fleet], None] | None = None,
    **sections: Any,
) -> AsyncIterator[Fleet]:
    """Serve so many tenants, t0 and up, until the block ends; `options` are those of `airlock serve`.

    `at_end` is called when the gateway has ended and its files are still there.
    """
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        home = make_home(Path(directory) / "home")
        home.configure(**sections)
        keys = await _keys(home, [f"t{number}" for number in range(tenants)])
        with served(home, env, *options) as gateway:
            async with contextlib.AsyncExitStack() as stack:
                clients = {
                    tenant: await stack.enter_async_context(Client(gateway.address, key))
                    for tenant, key in keys.items()
                }
                made = Fleet(home, gateway, keys, clients)
                yield made
        if at_end is not None:
            await asyncio.to_thread(at_end, made)


def cpu_s(stat: Path) -> float:
    """Return the processor time of a process or thread, by its stat file."""
    fields = stat.read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def machine_cpu_s() -> float:
    """Return the processor time that the whole machine has used."""
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


async def _keys(home: Home, names: Sequence[str]) -> dict[str, str]:
    document = yaml.safe_load(home.config.read_text(encoding="utf-8"))
    document["tenants"] |= {name: dict(document["tenants"]["default"]) for name in names}
    home.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    async with local_admin(Config.load(home.config), "bench") as admin:
        return {name: (await admin.create_key(name)).secret for name in names}
