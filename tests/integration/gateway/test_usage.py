"""What a run cost is seen everywhere: through a real gateway and its command line, and after kill -9 in a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted_model_server import ScriptedModelServer, Turn
from gateway.client import Client, Event
from tests.gateway_process import Home, airlock, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
PRICES = {
    "input_usd_per_mtok": 10.0,
    "output_usd_per_mtok": 100.0,
    "cached_input_usd_per_mtok": 1.0,
    "reasoning_usd_per_mtok": 50.0,
}
REPORTED = {
    "prompt_tokens": 1000,
    "completion_tokens": 200,
    "total_tokens": 1200,
    "prompt_tokens_details": {"cached_tokens": 900},
    "completion_tokens_details": {"reasoning_tokens": 150},
}
# 100 of input, 900 of cached input, 50 of output, 150 of reasoning.
COST_USD = (100 * 10 + 900 * 1 + 50 * 100 + 150 * 50) / 1e6
USED = {
    "requests": 1,
    "input_tokens": 1000,
    "cached_input_tokens": 900,
    "output_tokens": 200,
    "reasoning_tokens": 150,
    "estimated_tokens": 0,
    "cost_usd": COST_USD,
}


class HeldServer(ScriptedModelServer):
    """A model server that takes requests, and answers none before it is let."""

    def __init__(self, turns: list[Turn]) -> None:
        super().__init__(turns)
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await self.let.wait()
        await super()._answer(method, path, body, writer)


async def _home(directory: Path, model: ScriptedModelServer) -> Home:
    home = await asyncio.to_thread(make_home, directory)
    # A lease that no busy machine misses: the gateway that comes back needs not wait for it.
    home.configure(model={"base_url": model.base_url, "name": "scripted", **PRICES}, recovery={"lease_s": 60.0})
    return home


async def _said(address: str, key: str, *command: str) -> Any:
    ended = await asyncio.to_thread(airlock, *command, "--address", address, "--key", key, "--json")
    return json.loads(ended.stdout)


async def test_what_a_run_used_is_seen_in_lists_events_audit_and_totals(tmp_path: Path) -> None:
    async with ScriptedModelServer([Turn(say="Done.", usage=REPORTED)]) as model:
        home = await _home(tmp_path, model)
        auditor, operator = home.make_key("default", "audit"), home.make_key("", "operate")
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as client:
                events = [event async for event in client.run("go on", thread="t")]
                run = await client.get_run((await client.list_runs().__anext__()).id)
            (listed,) = await _said(gateway.address, home.key, "runs", "list")
            shown = await _said(gateway.address, home.key, "runs", "get", run.id)
            own = await _said(gateway.address, home.key, "usage", "--by", "day,model,agent")
            of_operator = await _said(gateway.address, operator, "usage", "--tenant", "default")
            record = await _said(gateway.address, auditor, "audit", "query", "--kind", "run_finished")
            table = (await asyncio.to_thread(_table, gateway.address, home.key)).splitlines()
    answered = next(event.payload for event in events if event.type == "model_finished")
    assert answered["model"] == "scripted"
    assert answered["first_token_ms"] > 0
    last = events[-1].payload
    assert {"requests": 1, **last["usage"]} == USED
    (use,) = last["models"]
    assert (use["agent"], use["model"], {"requests": 1, **use["usage"]}) == ("default", "scripted", USED)
    assert use["first_token_ms"] > 0
    for one in (listed, shown):
        assert (one["steps"], one["usage"]) == (1, USED)
        assert one["models"] == [
            {"agent": "default", "model": "scripted", "usage": USED, "first_token_ms": use["first_token_ms"]}
        ]
    assert (run.usage.cost_usd, run.models[0].first_token_ms) == (COST_USD, use["first_token_ms"])
    (total,) = own
    assert (total["model"], total["agent"], total["usage"]) == ("scripted", "default", USED)
    assert [one["usage"] for one in of_operator] == [USED]
    details = record["details"]
    assert (details["steps"], details["models"]) == (1, ["scripted"])
    assert {name: details[name] for name in USED} == USED
    assert table[0].split()[:3] == ["model", "requests", "in"]
    assert table[1].split() == ["scripted", "1", "1,000", "(900)", "200", "(150)", "0", "$0.0144"]


def _table(address: str, key: str) -> str:
    return airlock("usage", "--by", "model", "--address", address, "--key", key).stdout


@pytest.mark.parametrize("end", ["goes on", "cancelled"])
async def test_a_request_in_whose_midst_the_gateway_was_killed_is_charged_by_an_estimate(
    tmp_path: Path, database_url: str, end: str
) -> None:
    async with HeldServer([Turn(say="Done.", usage=REPORTED)]) as model:
        home = await _home(tmp_path, model)
        home.store_in(database_url)
        with contextlib.ExitStack() as last:
            life = last.enter_context(contextlib.ExitStack())
            gateway = life.enter_context(served(home, ENV))
            async with Client(gateway.address, home.key) as client:
                run = await client.start_run("go on", thread="t")
                async with asyncio.timeout(60):
                    await model.asked.wait()
                gateway.kill()
                await asyncio.to_thread(life.close)
                if end == "cancelled":
                    home.write("UPDATE runs SET cancel_us = 1 WHERE id = :id", id=run.id)
                model.let.set()
                await asyncio.to_thread(last.enter_context, served(home, ENV, "--listen", gateway.address))
                async with asyncio.timeout(90):
                    events = [event async for event in client.watch_run(run.id)]
                ended, (total,) = await client.get_run(run.id), await client.usage()
    assert ended.status == ("completed" if end == "goes on" else "cancelled")
    answers = 1 if end == "goes on" else 0
    usage = ended.usage
    assert usage.requests == 1 + answers
    # Of the lost request only the input is known, and that by an estimate.
    assert usage.estimated_tokens > 0
    assert usage.input_tokens == 1000 * answers + usage.estimated_tokens
    assert usage.output_tokens == 200 * answers
    assert usage.cost_usd == pytest.approx(COST_USD * answers + usage.estimated_tokens * 10 / 1e6)
    assert total.usage == usage
    assert _models_of(events[-1]) == [(usage.requests, usage.estimated_tokens)]


def _models_of(finished: Event) -> list[tuple[int, int]]:
    return [(use["requests"], use["usage"]["estimated_tokens"]) for use in finished.payload["models"]]
