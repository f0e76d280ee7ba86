"""What runs are charged for their models, on a real database, also by gateways that are lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select

from agent.errors import ModelRefused, ModelUnavailable
from agent.events import Event
from agent.hooks.hook import InferenceRequest
from agent.messages import ToolCall, Usage
from agent.models.model import OnDelta
from agent.state import ModelResponse
from gateway.config.agent_settings import AgentSettings
from gateway.policy.document import LimitsSection, PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.runs.account import Account
from gateway.runs.run_log import RunLog
from gateway.storage.entities import Run
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import audit_records, run_usage
from gateway.storage.usage_store import RunUse, UsageStore, Used, total_of
from gateway.tenancy.tenants import Tenant
from tests.unit.agent.fakes import says
from tests.unit.gateway.runs.test_taking_over import Gateway, Held, Make, gateway, world
from tests.unit.gateway.runs.test_waiting_runs import MODEL, a_policy, writes
from tests.unit.gateway.telemetry.seen import watching

__all__ = ["gateway", "world"]
PAID = Usage(input_tokens=100, cached_input_tokens=60, output_tokens=20, reasoning_tokens=5, cost_usd=0.25)
READER = {"description": "reads", "system_prompt": "You read."}
SUBAGENTS = AgentSettings.model_validate({"capabilities": {"subagents": {"definitions": {"reader": READER}}}})


def paid(text: str, *calls: ToolCall) -> ModelResponse:
    return says(text, *calls).with_(usage=PAID)


@pytest.fixture(autouse=True)
def script(world: Held) -> None:
    world.script = [paid("I write.", writes()), paid("Written.")]


async def _ended(world: Held, gateway: Gateway, run: Run) -> dict[str, Any]:
    """Return the payload of a run's last event, once the row, the audit and the event agree on what it used."""
    await gateway.status(run, "completed", "stopped", "cancelled", "failed")
    last = json.loads((await gateway.events(run))[-1].payload)
    uses = (await UsageStore(world.database).of_runs([run.id]))[run.id]
    assert not any(use.under_way.requests for use in uses)
    charged = total_of(uses)
    for said in (sum((Usage(**one["usage"]) for one in last["models"]), Usage()), Usage(**last["spent"]["usage"])):
        assert said.model_dump() == pytest.approx(charged.usage.model_dump())
    (total,) = await UsageStore(world.database).totals("acme", (), since_us=None, until_us=None, limit=9)
    assert (total.used.requests, total.used.usage.input_tokens) == (charged.requests, charged.usage.input_tokens)
    query = select(audit_records.c.details).where(audit_records.c.kind == "run_finished")
    (details,) = [json.loads(row.details) for row in await world.database.rows(query)]
    assert (details["requests"], details["steps"]) == (charged.requests, last.get("steps", details["steps"]))
    assert {name: details[name] for name in Usage.model_fields} == pytest.approx(charged.usage.model_dump())
    return last


async def test_a_run_is_charged_for_its_answers(world: Held, gateway: Make) -> None:
    host = gateway("gw_1")
    await host.serve()
    run = await host.start()
    last = await _ended(world, host, run)
    (use,) = last["models"]
    assert (use["agent"], use["model"], use["requests"]) == ("default", "world", 2)
    assert Usage(**use["usage"]) == PAID + PAID
    assert (await host.runs.get(await world.named("acme"), run.id)).steps == last["steps"] == 2


@pytest.mark.parametrize("holds, answered", [("answer 1", 0), ("answer 2", 1)])
async def test_a_request_that_a_lost_gateway_had_under_way_is_charged_by_an_estimate(
    world: Held, gateway: Make, holds: str, answered: int
) -> None:
    world.holds = holds
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await world.reached.wait()
    row = (await world.database.rows(select(run_usage)))[0]
    assert (row.requests, row.open_requests) == (answered, 1)  # it is on record while the request is under way
    await first.lose()
    world.holds = ""
    second = gateway("gw_2")
    await second.serve()
    last = await _ended(world, second, run)
    (use,) = last["models"]
    assert use["requests"] == 3
    lost = use["usage"]["estimated_tokens"]
    assert lost > 0
    assert use["usage"]["input_tokens"] == 2 * PAID.input_tokens + lost
    assert use["usage"]["cost_usd"] == pytest.approx(2 * PAID.cost_usd + lost / 1e6)
    # The run's own limits and the tenant's quotas look at this.
    assert last["usage"] == pytest.approx(use["usage"])


async def test_a_lost_request_counts_for_the_limits_of_its_run(world: Held, gateway: Make) -> None:
    limits = LimitsSection(output_tokens=30)
    world.put_in_force("v1", Policy(a_policy("allow").document.model_copy(update={"limits": limits})))
    world.holds = "answer 2"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await world.reached.wait()
    live = first.runs.live[run.id]
    (attempt,) = live.account._under_way
    attempt.grew(attempt.estimate.with_(output_tokens=50))
    live.log.emit(Event("state_changed", {}))
    async with asyncio.timeout(20):
        while (await world.database.rows(select(run_usage.c.open_output_tokens)))[0][0] != 50:
            await asyncio.sleep(0.01)
    await first.lose()
    world.holds = ""
    second = gateway("gw_2")
    await second.serve()
    await second.status(run, "stopped")
    last = await _ended(world, second, run)
    assert (last["stop"]["rule"], last["models"][0]["requests"]) == ("max_output_tokens", 2)


async def test_a_run_that_ends_as_interrupted_is_charged_for_what_was_under_way(world: Held, gateway: Make) -> None:
    world.holds = "answer 1"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await world.reached.wait()
    await first.lose()
    await first.store.ask_to_cancel(run.id)
    second = gateway("gw_2")
    await second.serve()
    last = await _ended(world, second, run)
    assert (last["status"], last["models"][0]["requests"]) == ("cancelled", 1)
    assert last["usage"]["estimated_tokens"] == last["usage"]["input_tokens"] > 0


async def test_a_cancelled_run_is_charged_for_its_request(world: Held, gateway: Make) -> None:
    world.holds = "answer 1"
    host = gateway("gw_1")
    await host.serve()
    run = await host.start()
    await world.reached.wait()
    await host.runs.cancel(await world.named("acme"), run.id)
    last = await _ended(world, host, run)
    assert last["status"] == "cancelled"
    assert last["usage"]["estimated_tokens"] == last["usage"]["input_tokens"] > 0


async def test_a_failed_request_says_in_its_event_what_it_cost(
    world: Held, gateway: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer, failures = world.infer, [ModelUnavailable("away"), ModelUnavailable("away")]
    failures[0].usage = PAID

    async def failing(request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        if failures:
            raise failures.pop(0)
        return await infer(request, on_delta)

    monkeypatch.setattr(world, "infer", failing)
    host = gateway("gw_1")
    await host.serve()
    run = await host.start()
    last = await _ended(world, host, run)
    failed = [json.loads(event.payload) for event in await host.events(run) if event.type == "model_failed"]
    assert [(one["model"], Usage(**one["usage"])) for one in failed] == [("world", PAID), ("world", Usage())]
    assert (last["models"][0]["requests"], Usage(**last["usage"])) == (4, PAID + PAID + PAID)


def _with_subagents(world: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    async def named(name: str) -> Tenant:
        return Tenant(name, world.in_force, MODEL, {"default": SUBAGENTS})

    monkeypatch.setattr(world, "named", named)


async def test_a_subagent_is_charged_under_its_own_name(
    world: Held, gateway: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_subagents(world, monkeypatch)
    rule = Rule(id="subagents", tools=("spawn_subagent",), effect="allow", reason="a test")
    world.put_in_force("v1", Policy(PolicyDocument(version=1, rules=(rule,))))
    spawn = ToolCall(id="s", name="spawn_subagent", arguments={"name": "reader", "task": "read it"})
    world.script = [paid("", spawn), paid("Read."), paid("Done.")]
    host = gateway("gw_1")
    await host.serve()
    last = await _ended(world, host, await host.start())
    assert [(one["agent"], one["requests"]) for one in last["models"]] == [("default", 2), ("reader", 1)]
    assert Usage(**last["usage"]) == PAID + PAID


async def test_what_a_lost_subagent_used_is_not_forgotten(
    world: Held, gateway: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_subagents(world, monkeypatch)
    rules = [Rule(id=tool, tools=(tool,), effect="allow", reason="a test") for tool in ("spawn_subagent", "write_file")]
    world.put_in_force("v1", Policy(PolicyDocument(version=1, rules=tuple(rules))))
    spawn = ToolCall(id="s", name="spawn_subagent", arguments={"name": "reader", "task": "read it"})
    world.script = [paid("", spawn), paid("", writes()), paid("Without it.")]
    world.holds = "answer 3"
    first = gateway("gw_1")
    await first.serve()
    run = await first.start()
    await world.reached.wait()
    await first.lose()
    world.holds = ""
    second = gateway("gw_2")
    await second.serve()
    last = await _ended(world, second, run)
    own, reader = last["models"]
    assert (own["requests"], reader["agent"], reader["requests"]) == (2, "reader", 2)
    assert reader["usage"]["input_tokens"] == PAID.input_tokens + reader["usage"]["estimated_tokens"]
    assert Usage(**last["usage"]) == PAID + PAID


async def test_a_request_is_on_record_without_a_transaction_of_its_own(world: Held, gateway: Make) -> None:
    written: list[RunUse] = []
    writes_of_run = 0
    host = gateway("gw_1")
    write_run = host.store.write_run

    async def counted(claim: Any, write: Any) -> None:
        nonlocal writes_of_run
        writes_of_run += 1
        if write.used is not None and not write.events and write.checkpoint is None:
            written.extend(write.used[1])
        await write_run(claim, write)

    host.store.write_run = counted  # type: ignore[method-assign]
    await host.serve()
    await host.status(await host.start(), "completed")
    assert written == []
    assert writes_of_run > 0


async def test_a_run_that_is_over_asks_no_model_any_more(world: Held) -> None:
    store = Store(world.database)
    run = await store.add_run(await store.thread("acme", "t"), NewRun("default", "x", "p"))
    account = Account("acme", "default")
    log = RunLog(run.id, store, account=account)
    attempt = await account.begin("", "m", PAID)
    await account.begin("helper", "m", PAID)
    stop: Any = {"hook": "h", "rule": "r", "reason": "x"}
    log.emit(Event("run_finished", account.reported({"status": "completed", "stop": stop, "answer": ""})))
    await log.close()
    attempt.end(PAID + PAID, None)  # too late: nobody waited for it
    with pytest.raises(ModelRefused, match="the run has ended"):
        await account.begin("", "m", PAID)
    uses = (await UsageStore(world.database).of_runs([run.id]))[run.id]
    assert {use.agent: use.used for use in uses} == {"default": Used(1, PAID), "helper": Used(1, PAID)}


async def test_a_request_that_is_not_on_record_when_its_run_ends_is_neither_sent_nor_charged(world: Held) -> None:
    store = Store(world.database)
    run = await store.add_run(await store.thread("acme", "t"), NewRun("default", "x", "p"))
    account = Account("acme", "default")
    log = RunLog(run.id, store, account=account)
    begins = asyncio.create_task(account.begin("", "m", PAID))
    await asyncio.sleep(0)
    stop: Any = {"hook": "h", "rule": "r", "reason": "x"}
    log.emit(Event("run_finished", account.reported({"status": "completed", "stop": stop, "answer": ""})))
    await log.close()
    with pytest.raises(ModelRefused, match="the run has ended"):
        await begins
    (use,) = (await UsageStore(world.database).of_runs([run.id]))[run.id]
    assert (use.used, use.under_way) == (Used(), Used())


async def test_what_is_charged_is_measured_by_tenant_and_model(world: Held) -> None:
    seen = watching(tenants_in_metrics=1)
    store = Store(world.database)
    for tenant in ("acme", "other-tenant"):
        run = await store.add_run(await store.thread(tenant, "t"), NewRun("default", "x", "p"))
        account = Account(tenant, "default", seen.telemetry)
        log = RunLog(run.id, store, account=account)
        (await account.begin("", "m", Usage())).end(PAID, 0.5)
        log.abandon()
        await log.close()
    labels = [{"airlock.tenant": tenant, "gen_ai.request.model": "m"} for tenant in ("acme", "other")]
    tokens = [
        (given["airlock.tenant"], given["gen_ai.token.type"], point.value)
        for given, point in seen.points("airlock.model.tokens")
    ]
    of_each = [("cached_input", 60), ("input", 100), ("output", 20), ("reasoning", 5)]
    assert sorted(tokens) == [(tenant, *one) for tenant in ("acme", "other") for one in of_each]
    assert [(given, point.value) for given, point in seen.points("airlock.model.cost")] == [
        (one, 0.25) for one in labels
    ]
    firsts = seen.points("airlock.model.first_token.duration")
    assert [(given, point.count, point.sum) for given, point in firsts] == [(one, 1, 0.5) for one in labels]
