"""Which runs a gateway is shown that it may go on with."""

from __future__ import annotations

from sqlalchemy import insert

from gateway.storage.database import Database
from gateway.storage.tables import runs, threads
from gateway.storage.waiting_store import WaitingStore


async def _add(database: Database, tenant: str, number: int, status: str, started_us: int) -> str:
    name = f"{tenant}{number}"
    thread = {"id": f"thr_{name}", "tenant": tenant, "name": name, "created_us": 1}
    run = {"id": f"run_{name}", "tenant": tenant, "thread_id": thread["id"], "agent": "a", "task": "x"}
    facts = {"policy_version": "p", "status": status, "last_sequence": 1, "started_us": started_us}
    await database.write((insert(threads), thread), (insert(runs), {**run, **facts}))
    return run["id"]


async def test_a_tenant_with_hundreds_of_older_runs_keeps_no_other_tenants_run_waiting(database_url: str) -> None:
    database = await Database.open(database_url)
    try:
        for status in ("waiting", "running"):
            for number in range(150):
                await _add(database, f"mallory-{status}", number, status, number)
            late = await _add(database, f"alice-{status}", 1, status, 10_000)
            store = WaitingStore(database)
            found = await (store.ready() if status == "waiting" else store.abandoned())
            assert late in [run.id for run in found[:2]]
            # The rest of the page is as before: the oldest first.
            of_mallory = [run.id for run in found if run.id != late]
            assert of_mallory == [f"run_mallory-{status}{number}" for number in range(len(of_mallory))]
    finally:
        await database.close()
