"""`make bench`: each module measures one thing and says beside what; the tables come as they are ready.

`make bench BENCH="service budget"` runs these alone.

policy_decisions what a decision among 1,000 rules costs, beside a plain judge that goes through them one by one
step_overhead    what a step of the loop costs besides model and tool, in time and in bytes written
service          calls through the whole gateway, beside `docker exec`, SWE-ReX and bare gRPC; needs a Docker engine
budget           where the time of one call through the gateway goes, stage by stage
audit_cost       what the audit's record costs a call, on SQLite and PostgreSQL
telemetry_cost   what metrics and traces cost a call
many_clients     64 clients of 32 tenants at 1 and 2 workers, and who uses the processors
sandbox_acquire  how soon a thread has its sandbox, with and without a pool, beside the docker package
sandbox_resume   how soon a stopped sandbox is back, beside the docker package's start()
many_sandboxes   200 live sandboxes of 50 tenants, a call to each; needs some 3 GiB
daemon_exec      programs in one sandbox, beside a bare subprocess and `docker exec`
daemon_files     256 MiB in and out, beside `docker cp`
snapshot_cost    100 MiB in 5,000 files kept and put back, beside `docker cp`
daemon_size      what an idle daemon costs in memory, and how soon it answers
idle_cost        how soon a gateway is ready, its memory, and what one `airlock tool call` takes
fair_creation    what one tenant's burst of sandboxes costs another, with turns and without
network          connections through the door, beside a container on a Docker bridge
e2b_sdk          commands and files by E2B's SDK, beside the same calls by gRPC
heavy_tenant     what one tenant's output full of secrets and long command lines cost another's light calls
mcp_calls        a tool call by MCP, beside the same call by gRPC
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console

from tests.bench import (
    audit_cost,
    budget,
    daemon_exec,
    daemon_files,
    daemon_size,
    e2b_sdk,
    fair_creation,
    heavy_tenant,
    idle_cost,
    many_clients,
    many_sandboxes,
    mcp_calls,
    network,
    policy_decisions,
    sandbox_acquire,
    sandbox_resume,
    service,
    snapshot_cost,
    step_overhead,
    telemetry_cost,
)

_ALL = (
    policy_decisions,
    step_overhead,
    service,
    budget,
    audit_cost,
    telemetry_cost,
    many_clients,
    sandbox_acquire,
    sandbox_resume,
    many_sandboxes,
    daemon_exec,
    daemon_files,
    snapshot_cost,
    daemon_size,
    idle_cost,
    fair_creation,
    network,
    e2b_sdk,
    heavy_tenant,
    mcp_calls,
)
_MODULES = {module.__name__.rpartition(".")[2]: module for module in _ALL}


async def _bench(names: Sequence[str]) -> None:
    console = Console(width=110)
    for name in names:
        for table in await _MODULES[name].tables():
            console.print(table)
            console.print()


if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in _MODULES]:
        sys.exit(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(_MODULES)}")
    asyncio.run(_bench(sys.argv[1:] or list(_MODULES)))
