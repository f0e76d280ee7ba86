"""The health of each service follows what it needs: with fakes, and with a PostgreSQL that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.serving.health import NOT_SERVING, SERVING, BoundedHealth, Health, Need, needs_of
from gateway.storage.database import Database
from tests.postgres import PostgresServer

RUN, TOOL = "gateway.v1.RunService", "gateway.v1.ToolService"
NAMES = ("", RUN, TOOL)


class Needed:
    """A database or an engine that is there, is gone, or hangs."""

    def __init__(self) -> None:
        self.gone = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0

    async def ask(self) -> None:
        self.asked += 1
        await self.may_answer.wait()
        if self.gone:
            raise ConnectionError("gone")


class Reported:
    """What the health service received of each service, all of it in order."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}

    async def set(self, service: str, status: int) -> None:
        self.of.setdefault(service, []).append(status)

    def now(self) -> dict[str, bool]:
        return {name: said[-1] == SERVING for name, said in self.of.items()}


def _health(reported: Reported, database: Needed, engine: Needed, limit_s: float = 60) -> Health:
    everywhere, in_sandboxes = frozenset(NAMES), frozenset({TOOL})
    return Health(
        reported,
        (
            Need("database", database.ask, everywhere, every_s=0.001, limit_s=limit_s),
            Need("engine", engine.ask, in_sandboxes, every_s=0.001, limit_s=limit_s),
        ),
    )


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


async def test_what_needs_an_engine_does_not_serve_while_it_is_gone_and_all_else_does() -> None:
    reported, database, engine = Reported(), Needed(), Needed()
    async with _health(reported, database, engine).following():
        assert reported.now() == {"": True, RUN: True, TOOL: True}
        engine.gone = True
        await _until(lambda: reported.now() == {"": True, RUN: True, TOOL: False})
        database.gone = True
        await _until(lambda: reported.now() == {"": False, RUN: False, TOOL: False})
        database.gone = False
        await _until(lambda: reported.now() == {"": True, RUN: True, TOOL: False})
        engine.gone = False
        await _until(lambda: reported.now() == {"": True, RUN: True, TOOL: True})
    assert reported.of == {
        "": [SERVING, NOT_SERVING, SERVING],
        RUN: [SERVING, NOT_SERVING, SERVING],
        TOOL: [SERVING, NOT_SERVING, SERVING],
    }, "each change is said once"


async def test_a_gateway_whose_engine_is_gone_at_the_start_does_not_say_first_that_it_serves() -> None:
    reported, engine = Reported(), Needed()
    engine.gone = True
    async with _health(reported, Needed(), engine).following():
        assert reported.of == {"": [SERVING], RUN: [SERVING], TOOL: [NOT_SERVING]}


async def test_what_hangs_is_gone_and_asked_once_until_it_answers() -> None:
    reported, database, engine = Reported(), Needed(), Needed()
    async with _health(reported, database, engine, limit_s=0.01).following():
        database.may_answer.clear()
        await _until(lambda: not reported.now()[""])
        asked, looked = database.asked, engine.asked
        await _until(lambda: engine.asked > looked + 20)
        assert database.asked == asked
        assert reported.now()[RUN] is False
        database.may_answer.set()
        await _until(lambda: reported.now() == {"": True, RUN: True, TOOL: True})


async def test_what_hangs_does_not_hold_up_the_end() -> None:
    engine = Needed()
    engine.may_answer.clear()
    async with asyncio.timeout(60), _health(Reported(), Needed(), engine, limit_s=0.01).following():
        pass


async def test_a_gateway_that_drains_serves_no_more_whatever_comes_back() -> None:
    healthy, engine = BoundedHealth(), Needed()
    engine.gone = True
    health = Health(healthy, (Need("engine", engine.ask, frozenset({TOOL}), every_s=0.001),))
    async with health.following():
        await healthy.enter_graceful_shutdown()
        engine.gone = False
        asked = engine.asked
        await _until(lambda: engine.asked > asked + 3)
        assert healthy._statuses[TOOL] == NOT_SERVING


async def test_a_database_that_goes_and_comes_back_takes_the_services_with_it(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.serving.health._DATABASE_EVERY_S", 0.02)
    reported, database = Reported(), await Database.open(postgres_url)
    async with Health(reported, needs_of((RUN, TOOL), database, Needed().ask)).following():
        assert reported.now() == {"": True, RUN: True, TOOL: True}
        postgres_server.stop()
        try:
            await _until(lambda: reported.now() == {"": False, RUN: False, TOOL: False})
        finally:
            postgres_server.start()
        await _until(lambda: reported.now() == {"": True, RUN: True, TOOL: True})
    await database.close()
    assert reported.of[""] == [SERVING, NOT_SERVING, SERVING]
