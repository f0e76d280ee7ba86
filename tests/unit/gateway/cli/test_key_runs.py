"""`airlock key revoke`: what it says of the runs that the key started, and their end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.config.config import Config
from gateway.credentials.caller import CALLER, Caller
from gateway.storage.database import Database
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import runs
from tests.unit.gateway.cli.test_key import _airlock, _key, made

__all__ = ["made"]


async def _with_runs(config: str, shown: str, count: int) -> None:
    database = await Database.open(Config.load(Path(config)).resolved_database_url())
    try:
        CALLER.set(Caller("key_1", shown))
        store = Store(database)
        for number in range(count):
            thread = await store.thread("default", f"t{number}")
            await store.add_run(thread, NewRun(agent="default", task="x", policy_version="p"))
    finally:
        await database.close()


async def _asked_to_end(config: str) -> list[bool]:
    database = await Database.open(Config.load(Path(config)).resolved_database_url())
    try:
        return [row.cancel_us is not None for row in await database.rows(select(runs.c.cancel_us))]
    finally:
        await database.close()


def test_a_revoked_keys_runs_are_counted_and_ended_only_where_that_is_asked_for(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    key = _key(made, "create", "--scope", "run")
    asyncio.run(_with_runs(made["config"], key["shown"], 2))
    code, reported = _airlock("key", "revoke", key["id"], "--config", made["config"])
    assert code == 0
    assert f"revoked {key['shown']}" in reported
    assert "still active: 2 runs that it started" in reported
    assert f"airlock runs list --started-by {key['shown']}" in reported
    assert f"airlock key revoke {key['id']} --cancel-runs" in reported
    assert asyncio.run(_asked_to_end(made["config"])) == [False, False]
    again = _key(made, "revoke", key["id"], "--cancel-runs")
    assert (again["shown"], again["runs_under_way"]) == (key["shown"], 2)
    assert asyncio.run(_asked_to_end(made["config"])) == [True, True]


def test_of_a_key_without_runs_nothing_is_said_of_runs(made: dict[str, Any]) -> None:
    key = _key(made, "create", "--scope", "run")
    code, reported = _airlock("key", "revoke", key["id"], "--config", made["config"])
    assert (code, reported) == (0, f"revoked {key['shown']}\n")
    assert (
        json.loads(_airlock("key", "revoke", key["id"], "--config", made["config"], "--json")[1])["runs_under_way"] == 0
    )
