"""What a gateway costs here, and whether the model's prediction holds: `python -m tests.simulation.measuring`.

A real gateway with the memory engine on a real PostgreSQL that waits for its disk; one client, then eight, in turn.
Processor times are those of the kernel's scheduler, so other load on the machine does not count in them. What others
used of the processors meanwhile is given to the model, which then says what eight clients get. On a machine with much
else to do, run it for its quarter of a minute with a priority: `nice -n -10`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import psycopg
from rich.console import Console
from rich.table import Table

from gateway.client import Client
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.support.clock import make_id
from tests import postgres
from tests.bench.fleet import machine_cpu_s
from tests.gateway_process import make_home, served
from tests.simulation.calls import carried
from tests.simulation.costs import COSTS
from tests.simulation.validation import Measured, predicted_calls_per_s
from tests.simulation.written_calls import ENDED, call_entry, call_row

_DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
_NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
_ROUNDS, _SERIAL, _EIGHT = 3, 30, 120
_CLIENTS = 8
_MIB = 1024 * 1024
_EXECUTE = ("execute", {"command": "true"})
_READ = ("read_file", {"path": "page"})


def _cpu_of(pids: Sequence[int]) -> float:
    """Return the processor seconds of all threads of these processes, and of children that are gone."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                total_s += int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            total_s += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return total_s


def _below(pid: int) -> list[int]:
    """Return the processes below one."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text(encoding="ascii").split()):
                found += [child, *_below(child)]
    return found


@dataclass(frozen=True)
class _Machine:
    """A gateway, its database's server and its sandboxes, by their processes."""

    client: Client
    gateway: int
    database_url: str

    def cpu_s(self) -> Mapping[str, float]:
        with psycopg.connect(self.database_url) as connection:
            asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'airlock'"
            backends = [int(pid) for (pid,) in connection.execute(asked)]
        groups = {"client": [os.getpid()], "gateway": [self.gateway], "database": backends}
        return {name: _cpu_of(pids) for name, pids in {**groups, "sandbox": _below(self.gateway)}.items()}

    def log_bytes(self) -> int:
        with psycopg.connect(self.database_url) as connection:
            found = connection.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
        assert found is not None
        return int(found[0])

    def memory_mib(self) -> tuple[float, float]:
        """Return what the gateway and a sandbox's daemon have resident."""
        return _pss_mib(self.gateway), max(_pss_mib(pid) for pid in _below(self.gateway))


def _pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / _MIB


@contextlib.asynccontextmanager
async def _machine() -> AsyncIterator[_Machine]:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(mock.patch.dict(postgres._SETTINGS, _DURABLE))
        url = stack.enter_context(stack.enter_context(postgres.running_postgres()).database())
        home = make_home(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home")
        home.configure(sandbox={"engine": "memory"})
        home.store_in(url)
        gateway = stack.enter_context(served(home, _NO_DOCKER))
        client = await stack.enter_async_context(Client(gateway.address, home.key))
        await client.write_file("t", "/workspace/page", b"x" * 4096)
        yield _Machine(client, gateway.process.pid, url)


async def _calls(machine: _Machine, clients: int, calls: int, call: tuple[str, dict[str, str]]) -> Measured:
    """Make calls and return what each took and used."""
    left = iter(range(calls))
    taken_s: list[float] = []

    async def client() -> None:
        for _ in left:
            began_s = time.perf_counter()
            result = await machine.client.call_tool(call[0], call[1], thread="t")
            taken_s.append(time.perf_counter() - began_s)
            assert not result.is_error, result

    before, log_before = machine.cpu_s(), machine.log_bytes()
    began_s, machine_before_s = time.perf_counter(), machine_cpu_s()
    await asyncio.gather(*(client() for _ in range(clients)))
    elapsed_s = time.perf_counter() - began_s
    all_s = machine_cpu_s() - machine_before_s
    used_s = {name: now_s - before[name] for name, now_s in machine.cpu_s().items()}
    return Measured(
        cpu_s={name: one_s / calls for name, one_s in used_s.items()},
        latency_s=statistics.median(taken_s),
        calls_per_s=calls / elapsed_s,
        log_bytes=(machine.log_bytes() - log_before) / calls,
        other_processors=max(0.0, all_s - sum(used_s.values())) / elapsed_s,
    )


def _middle(rounds: Sequence[Measured]) -> Measured:
    def middle(name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in rounds))

    cpu_s = {name: statistics.median(one.cpu_s[name] for one in rounds) for name in rounds[0].cpu_s}
    return Measured(
        cpu_s, **{name: middle(name) for name in ("latency_s", "calls_per_s", "log_bytes", "other_processors")}
    )


async def measured() -> tuple[dict[str, Measured], tuple[float, float]]:
    """Return what one client and eight clients took, by kind of call, and memory in MiB: gateway, daemon."""
    async with _machine() as machine:
        for call in (_EXECUTE, _READ):
            await _calls(machine, _CLIENTS, 60, call)
        rounds: dict[str, list[Measured]] = {}
        for _ in range(_ROUNDS):
            for name, clients, calls, call in (
                ("execute", 1, _SERIAL, _EXECUTE),
                ("read_file", 1, _SERIAL, _READ),
                ("execute, 8 clients", _CLIENTS, _EIGHT, _EXECUTE),
                ("read_file, 8 clients", _CLIENTS, _EIGHT, _READ),
            ):
                rounds.setdefault(name, []).append(await _calls(machine, clients, calls, call))
        return {name: _middle(found) for name, found in rounds.items()}, machine.memory_mib()


def sync_s() -> float:
    """Return how long the disk of temporary files takes to keep a page."""
    with tempfile.TemporaryFile() as file:
        taken_s = []
        for _ in range(100):
            file.write(b"x" * 8192)
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s)


async def _written(url: str, writers: int, clients: int, calls: int) -> tuple[float, list[tuple[int, float]]]:
    """Have calls written by so many writers, as by gateways of their own; return calls/s, and the transactions."""
    seen = list[tuple[int, float]]()
    databases = [await Database.open(url) for _ in range(writers)]

    async def client(database: Database) -> None:
        store = Store(database, gateway="gw")
        thread = await store.thread("t", "t")
        for _ in range(calls):
            row = call_row(thread, make_id("call"))
            await store.write_tool_call(row)
            await store.finish_tool_call(row["id"], ENDED, audited=[call_entry(row)])

    for database in databases:
        database.listen(lambda writes, taken_s: seen.append((writes, taken_s)))
    began_s = time.perf_counter()
    await asyncio.gather(*(client(database) for database in databases for _ in range(clients)))
    rate = writers * clients * calls / (time.perf_counter() - began_s)
    for database in databases:
        await database.close()
    return rate, seen


async def statement_s() -> float:
    """Return what a statement of the writer takes where no disk and no network is waited for, in groups of any size."""
    with postgres.running_postgres() as server, server.database() as url:
        transactions = [one for clients in (1, 8, 32) for one in (await _written(url, 1, clients, 20))[1]]
    # Besides its writes it has BEGIN, the lock and the commit, and half of them have the audit's.
    return statistics.median(taken_s / (writes + 5) for writes, taken_s in transactions)


async def four_writers() -> tuple[float, float]:
    """Return what four writers with 16 clients each write on a real disk, in calls/s: predicted and measured."""
    disk_s = sync_s()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(postgres._SETTINGS, _DURABLE))
        url = stack.enter_context(stack.enter_context(postgres.running_postgres()).database())
        await _written(url, 1, 1, 20)
        real, _ = await _written(url, 4, 16, 15)
    alone = replace(COSTS, gateway_s={"writing": 0.0}, sandbox_s=0.0, round_trip_s=0.0, sync_s=disk_s)
    return carried(4, costs=alone, reading=0.0).calls_per_s, real


def tables() -> list[Table]:
    """Measure and return what is printed."""
    found, (gateway_mib, daemon_mib) = asyncio.run(measured())
    disk_s = sync_s()
    costs = Table("a call", "calls/s", "p50 ms", "gateway ms", "database ms", "sandbox ms", "client ms", "WAL bytes")
    for name, one in found.items():
        cpu = (f"{one.cpu_s[who] * 1000:.2f}" for who in ("gateway", "database", "sandbox", "client"))
        costs.add_row(name, f"{one.calls_per_s:.0f}", f"{one.latency_s * 1000:.1f}", *cpu, f"{one.log_bytes:.0f}")
    costs.caption = (
        f"gateway {gateway_mib:.0f} MiB, daemon {daemon_mib:.0f} MiB, fdatasync {disk_s * 1000:.2f} ms, "
        f"a statement {asyncio.run(statement_s()) * 1000:.2f} ms"
    )
    held = Table(f"{_CLIENTS} clients", "predicted calls/s", "measured calls/s", "ratio", "others' processors")
    for name, kind in (("execute", "writing"), ("read_file", "reading")):
        one = found[f"{name}, 8 clients"]
        predicted = predicted_calls_per_s(one, kind, clients=_CLIENTS, processors=os.cpu_count() or 1, sync_s=disk_s)
        ratio = predicted / one.calls_per_s
        held.add_row(name, f"{predicted:.0f}", f"{one.calls_per_s:.0f}", f"{ratio:.2f}", f"{one.other_processors:.2f}")
    predicted, real = asyncio.run(four_writers())
    held.add_row("4 writers, 64 clients", f"{predicted:.0f}", f"{real:.0f}", f"{predicted / real:.2f}", "")
    return [costs, held]


if __name__ == "__main__":
    for shown in tables():
        Console(width=120).print(shown)
