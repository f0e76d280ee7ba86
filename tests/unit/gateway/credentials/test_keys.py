"""Keys and their scopes: what is stored of one, and that none can both act and approve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, update

from gateway.credentials.keys import ACTING_SCOPES, SCOPES, checked_scopes, digest_of, make_key
from gateway.errors import Conflict, InvalidArgument
from gateway.storage.connecting import READERS
from gateway.storage.database import Database
from gateway.storage.key_store import KeyRequest, KeyStore
from gateway.storage.tables import api_keys


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def test_a_key_is_found_by_its_digest_only(database: Database) -> None:
    keys, key = KeyStore(database), make_key()
    await keys.add("default", key)
    found = await keys.find(digest_of(key.secret))
    assert found is not None
    assert (found.id, found.tenant, found.shown, found.scopes) == (key.id, "default", key.shown, ACTING_SCOPES)
    assert await keys.find(digest_of(key.secret + "x")) is None
    assert key.secret not in (key.digest, key.shown)


async def test_a_key_is_found_while_every_reader_is_at_a_long_answer(database: Database) -> None:
    keys, key = KeyStore(database), make_key()
    await keys.add("default", key)
    free = threading.Event()

    def slow(found: object) -> None:
        free.wait(timeout=60)

    reading = [asyncio.create_task(database.read(select(api_keys), slow)) for _ in range(2 * READERS)]
    try:
        assert await keys.find(key.digest) is not None
        assert not any(one.done() for one in reading)
    finally:
        free.set()
        await asyncio.gather(*reading)


async def test_a_request_for_a_key_is_good_for_ten_minutes(database: Database) -> None:
    now_us = 1_000_000_000
    keys, request = KeyStore(database, clock=lambda: now_us), KeyRequest.of("r1", "somebody", "acme")

    async def made() -> str:
        asked = await keys.add("acme", make_key(), by="somebody", request=request)
        return asked.id

    first = await made()
    now_us += 599_000_000
    assert await made() == first
    now_us += 2_000_000
    with pytest.raises(Conflict) as caught:
        await made()
    assert caught.value.details["key_id"] == first


async def test_a_key_whose_time_is_over_is_expired_and_one_that_was_revoked_is_only_that(database: Database) -> None:
    now_us = 1_000_000_000
    keys, over, works = KeyStore(database, clock=lambda: now_us), make_key(), make_key()
    await keys.add("acme", over, lifetime_us=10)
    await keys.add("acme", works, lifetime_us=1000)
    now_us += 10

    async def listed(state: str) -> list[str]:
        return [key.id for key in await keys.list("acme", include_ended=False, limit=9, state=state)]

    assert [await listed("expired"), await listed("working"), await listed("revoked")] == [[over.id], [works.id], []]
    await keys.revoke(over.id, by="somebody")
    assert [await listed("expired"), await listed("working"), await listed("revoked")] == [[], [works.id], [over.id]]


async def test_a_revoked_key_is_not_known(database: Database) -> None:
    keys, key = KeyStore(database), make_key()
    await keys.add("default", key)
    await database.write((update(api_keys).values(revoked_us=1), None))
    assert await keys.find(digest_of(key.secret)) is None


async def test_a_key_keeps_its_scopes(database: Database) -> None:
    keys = KeyStore(database)
    made = [make_key(scopes) for scopes in (["files", "run"], ["approve"])]
    for key in made:
        await keys.add("default", key)
    found = [await keys.find(key.digest) for key in made]
    assert [key.scopes for key in found if key is not None] == [("run", "files"), ("approve",)]


@pytest.mark.parametrize("other", ACTING_SCOPES)
def test_no_key_can_act_and_approve(other: str) -> None:
    with pytest.raises(InvalidArgument, match="an agent must not approve itself"):
        make_key(["approve", other])


@pytest.mark.parametrize("scopes", [[], ["root"], ["run", "Approve"], ["run,approve"]])
def test_scopes_that_there_are_not_are_refused_with_those_that_there_are(scopes: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=r"has run, tool, files, approve"):
        checked_scopes(scopes)


def test_scopes_come_in_one_order() -> None:
    assert checked_scopes(reversed(ACTING_SCOPES)) == ACTING_SCOPES
    assert (*ACTING_SCOPES, "approve", "operate", "audit") == SCOPES
