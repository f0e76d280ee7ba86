"""A tenant and a thread that are deleted, on a real gateway: no row, no volume and no byte in SQLite's file is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.cli.main import app
from gateway.client import Client
from gateway.errors import NotFound, ThreadBusy, Unavailable
from gateway.storage.database import Database
from gateway.storage.erasure_store import rows_of
from gateway.storage.tables import metadata
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
GONE, MARK = "zgone", "zmark4711"
POLICY = f"""\
version: 1
rules:
  - {{id: files, tools: [read, write], effect: allow, reason: The workspace.}}
  - {{id: commands, tools: [execute], effect: allow, reason: Any command of {MARK}.}}
  - {{id: deploys, tools: [execute], argv: [[touch, deployed]], effect: ask, reason: Somebody looks at it.}}
"""
RUN = [Turn(say=f"{MARK} begins", calls=(Call("execute", {"command": f"echo {MARK} > by-run"}),)), Turn(say="Done.")]


async def _live(address: str, key: str) -> None:
    """Leave something of every kind: calls, files, a run and its events, an approval that is asked for."""
    async with Client(address, key) as client:
        await client.call_tool("execute", {"command": f"echo {MARK} > kept"}, thread=f"{MARK}-a")
        await client.write_file(f"{MARK}-b", "/workspace/b", MARK.encode())
        await client.create_snapshot(f"{MARK}-b", comment=MARK)
        asked = await client.call_tool("execute", {"command": "touch deployed"}, thread=f"{MARK}-b")
        assert asked.outcome == "waiting"
        events = [event async for event in client.run(f"write {MARK}", thread=f"{MARK}-c")]
        assert events[-1].payload["status"] == "completed"


async def _reported(env: dict[str, str], *arguments: str, code: int = 0) -> Any:
    """Return what the command line tells programs; in this process, which has imported everything."""
    ran = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--json"], env=env)
    assert ran.exit_code == code, ran.output
    documents = [json.loads(line) for line in ran.stdout.splitlines()]
    return documents[0] if len(documents) == 1 else documents


def _unconfigure(home: Home, tenant: str) -> None:
    document = yaml.safe_load(home.config.read_text(encoding="utf-8"))
    del document["tenants"][tenant]
    home.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    (home.config.parent / "policies" / f"{tenant}.yaml").unlink()


def _bytes_of(home: Home, text: str) -> int:
    found = (path for path in (home.config.parent / "state").rglob("*") if path.is_file())
    return sum(path.read_bytes().count(text.encode()) for path in found)


def _workspaces(home: Home) -> int:
    """Return how many workspaces there are; the runtime's volume comes and goes with the gateways."""
    return sum("-workspace-" in name for name in volumes_of(home.instance))


async def _stored(url: str) -> tuple[dict[str, int], list[str]]:
    """Return the tenant's rows by table, and every row of any table that has its mark."""
    database = await Database.open(url)
    try:
        marked = [
            f"{table.name}: {row}"
            for table in metadata.sorted_tables
            for row in await database.rows(table.select())
            if MARK in str(row)
        ]
        return dict(await rows_of(database, GONE)), marked
    finally:
        await database.close()


async def test_nothing_is_left_of_a_tenant_that_is_deleted_and_the_operators_audit_has_the_proof(
    database_url: str, tmp_path: Path
) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    sqlite = database_url.startswith("sqlite")
    url = f"sqlite:///{home.config.parent}/state/airlock.db" if sqlite else database_url
    async with ScriptedModelServer(RUN) as model:
        home.configure(
            database_url=url, model={"base_url": model.base_url, "name": "scripted"}, sandbox={"keep_workspaces": True}
        )
        key, operator, kept_key = await asyncio.to_thread(
            lambda: (home.add_tenant(GONE, POLICY), home.make_key(""), home.make_key("default"))
        )
        with served(home, ENV) as gateway:
            await _live(gateway.address, key)
            env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": operator}
            refused = await _reported(env, "tenant", "delete", GONE, "--yes", code=3)
            assert refused["reason"] == "STILL_CONFIGURED"
            async with Client(gateway.address, kept_key) as other:
                await other.write_file("kept", "/workspace/mine", b"mine")
    before, marked = await _stored(url)
    assert {table for table, count in before.items() if count} >= {
        *("api_keys", "threads", "runs", "events", "messages", "tool_calls", "approvals", "policy_changes"),
        *("audit_records", "audit_heads"),
    }
    assert marked
    workspaces = _workspaces(home)
    _unconfigure(home, GONE)
    home.configure(sandbox={"keep_workspaces": False})
    with served(home, ENV) as gateway:
        env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": operator}
        assert GONE not in {one["name"] for one in await _reported(env, "tenant", "list")}
        shown = await _reported(env, "tenant", "show", GONE)
        assert (shown["stored"]["threads"], shown["policy_version"]) == (3, "")
        proof = await _reported(env, "tenant", "delete", GONE, "--audit", "--yes")
        assert proof["workspaces_removed"] == 3
        assert set(proof["left"].values()) == {0}
        assert proof["left"].keys() >= {"threads", "volumes", "containers", "snapshots", "snapshot_files"}
        removed = [proof["removed"][table] for table in ("threads", "runs", "approvals")]
        assert removed == [3, 1, 1]
        assert (await _reported(env, "tenant", "show", GONE, code=3))["reason"] == "NOT_FOUND"
        never = await _reported(env, "tenant", "delete", "never-was", "--yes", code=3)
        assert never["reason"] == "NOT_FOUND"
        again = await _reported(env, "tenant", "delete", GONE, "--audit", "--yes")
        assert {*again["removed"].values(), *again["left"].values(), again["workspaces_removed"]} == {0}
        after, marked = await _stored(url)
        assert not any(after.values())
        assert marked == []
        if sqlite:
            assert _bytes_of(home, MARK) == 0
        assert workspaces - _workspaces(home) == 3
        reported = {one["sequence"]: one for one in await _reported(env, "audit", "query", "--kind", "tenant_deleted")}
        assert reported.keys() == {proof["audit_sequence"], again["audit_sequence"]}
        record = reported[proof["audit_sequence"]]
        assert (record["details"]["left"], record["details"]["workspaces_removed"]) == (proof["left"], 3)
        assert (await _reported(env, "audit", "verify"))["whole"]
        async with Client(gateway.address, kept_key) as other:
            assert await other.read_file("kept", "/workspace/mine") == b"mine"
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_nothing_is_left_of_a_thread_that_is_deleted_while_others_go_on(
    database_url: str, tmp_path: Path
) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    sqlite = database_url.startswith("sqlite")
    url = f"sqlite:///{home.config.parent}/state/airlock.db" if sqlite else database_url
    home.configure(database_url=url)
    key = home.make_key("default")
    with served(home) as gateway:
        async with Client(gateway.address, key) as client:
            await client.call_tool("execute", {"command": f"echo {MARK} > a"}, thread="gone")
            await client.call_tool("execute", {"command": "echo kept > a"}, thread="kept")
            process = await client.start_process(["sleep", "600"], thread="gone")
            assert process.id
            volumes = len(volumes_of(home.instance))
            removed = await client.delete_thread("gone")
            assert (removed["threads"], removed["tool_calls"]) == (1, 2)
            assert len(volumes_of(home.instance)) == volumes - 1
            _, marked = await _stored(url)
            assert marked == []
            if sqlite:
                assert _bytes_of(home, MARK) == 0
            assert await client.read_file("kept", "/workspace/a") == b"kept\n"
            anew = await client.call_tool("execute", {"command": "ls"}, thread="gone")
            assert anew.content.strip() in ("", "(no output)")
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


async def test_calls_that_race_deletions_have_their_records_and_leave_no_sandbox_without_an_owner(
    database_url: str, tmp_path: Path
) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    home.store_in(database_url)
    key = home.make_key("default")
    answered: list[str] = []
    over = asyncio.Event()

    async def delete(client: Client) -> None:
        while not over.is_set():
            with contextlib.suppress(ThreadBusy, NotFound):
                await client.delete_thread("a")
            await asyncio.sleep(0)

    with served(home) as gateway:
        async with Client(gateway.address, key, retry=None) as client:
            deleting = [asyncio.create_task(delete(client)) for _ in range(2)]
            for _ in range(12):
                with contextlib.suppress(Unavailable):
                    said = await client.call_tool("execute", {"command": "echo kept > a"}, thread="a")
                    answered.append(said.call_id)
            over.set()
            await asyncio.gather(*deleting)
            with contextlib.suppress(NotFound):
                await client.delete_thread("a")
            recorded = {row[0] for row in home.rows("SELECT call_id FROM audit_records WHERE outcome = 'exited'")}
            assert set(answered) <= recorded
            assert (home.rows("SELECT name FROM threads"), volumes_of(home.instance)) == ([], [])
