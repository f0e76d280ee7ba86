"""What gateways of one database have in common: the id of their containers, and the engine of a thread's files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.credentials.keys import NewKey, digest_of
from gateway.errors import Misconfigured, OtherEngine
from gateway.serving.directory_locks import shared_instance
from gateway.serving.listening import KNOWN_KEYS, refuse_known_keys
from gateway.storage.database import Database
from gateway.storage.engine_store import EngineStore
from gateway.storage.key_store import KeyStore
from gateway.storage.store import Store
from gateway.support.clock import make_id
from gateway.tool_calls.thread_sandbox import ThreadEngines
from sandbox.errors import EngineUnavailable


class FakeEngine:
    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id

    async def id(self) -> str:
        if not self.engine_id:
            raise EngineUnavailable("it does not answer")
        return self.engine_id


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


def directories(tmp_path: Path, count: int) -> list[Path]:
    made = [tmp_path / f"state{number}" for number in range(count)]
    for directory in made:
        directory.mkdir()
    return made


async def test_all_gateways_of_a_database_have_one_id_and_each_a_copy_of_it(database: Database, tmp_path: Path) -> None:
    homes = directories(tmp_path, 4)
    found = set(await asyncio.gather(*(shared_instance(database, home) for home in homes)))
    assert len(found) == 1
    assert {(home / "instance").read_text("ascii") for home in homes} == found
    assert {await shared_instance(database, homes[0])} == found


async def test_what_an_earlier_release_left_is_taken_over_and_another_s_is_refused(
    database: Database, tmp_path: Path
) -> None:
    first, second = directories(tmp_path, 2)
    for home in (first, second):
        (home / "instance").write_text(f"{make_id('gw')}\n", encoding="ascii")
    assert await shared_instance(database, first) == (first / "instance").read_text("ascii").strip()
    with pytest.raises(Misconfigured, match="names other containers and workspaces"):
        await shared_instance(database, second)


@pytest.mark.parametrize("damage", [b"", b"gw_1", b"\xff\xfe"])
async def test_a_damaged_file_is_reported_and_not_overwritten(
    database: Database, tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / "instance").write_bytes(damage)
    with pytest.raises(Misconfigured, match="instance"):
        await shared_instance(database, tmp_path)
    assert (tmp_path / "instance").read_bytes() == damage


async def test_a_thread_is_on_the_engine_of_its_first_sandbox_for_good(database: Database) -> None:
    thread = await Store(database).thread("t", "mine")
    one, other = (ThreadEngines(EngineStore(database), FakeEngine(name)) for name in ("E1", "E2"))
    for engines in (one, other):
        await engines.refuse_other(thread)  # on none yet
    await one.claim(thread)
    await one.claim(thread)
    await one.refuse_other(thread)
    for refused in (other.refuse_other(thread), other.claim(thread)):
        with pytest.raises(OtherEngine, match="E1") as reported:
            await refused
        assert reported.value.details == {"engine": "E1"}


async def test_an_engine_that_does_not_answer_refuses_no_thread_and_gets_none(database: Database) -> None:
    thread = await Store(database).thread("t", "mine")
    await ThreadEngines(EngineStore(database), FakeEngine("E1")).claim(thread)
    away = ThreadEngines(EngineStore(database), FakeEngine(""))
    await away.refuse_other(thread)
    with pytest.raises(EngineUnavailable):
        await away.claim(thread)


async def test_a_key_of_the_documentation_is_refused(database: Database) -> None:
    await refuse_known_keys(database)
    known = KNOWN_KEYS[0]
    await KeyStore(database).add("t", NewKey("key_1", known, known, digest_of(known)))
    with pytest.raises(Misconfigured, match="airlock key revoke key_1"):
        await refuse_known_keys(database)
