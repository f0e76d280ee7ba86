"""Runs that wait for an approval: on a real SQLite file, with gateways that come and go on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import select

from agent.hooks.hook import InferenceRequest
from agent.messages import ToolCall
from agent.models.model import Model, OnDelta
from agent.models.prices import Prices
from agent.state import ModelResponse
from gateway.agents.charged_model import ChargedModel, Charges
from gateway.agents.models import Models
from gateway.approvals.approvals import Approvals
from gateway.config.agent_settings import AgentSettings
from gateway.config.model_settings import ModelSettings
from gateway.errors import ThreadBusy, Unavailable
from gateway.policy.document import LimitsSection, PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.policy_versions.policies import InForce
from gateway.runs.hosting import RunParts
from gateway.runs.runs import RunRequest, Runs
from gateway.runs.waiting_runs import WaitingRuns
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.entities import LoggedEvent, Run
from gateway.storage.store import Store
from gateway.storage.tables import runs as runs_table
from gateway.storage.waiting_store import WaitingStore
from gateway.tenancy.tenants import Tenant
from tests.unit.agent.fakes import FakeFiles, says
from tests.unit.gateway.made_parts import made_quotas, made_tool_calls

MODEL = ModelSettings()


def a_policy(effect: Any = "ask", *, approval_s: float = 600, note: str = "") -> Policy:
    rules = (
        Rule(id="files", tools=("read_file", "write_file"), effect="allow", reason="a test"),
        Rule(id="looked-at", tools=("write_file",), paths=("/workspace/**",), effect=effect, reason="somebody looks"),
    )
    limits = LimitsSection(approval_s=approval_s)
    return Policy(PolicyDocument(version=1, description=note, rules=rules, limits=limits))


class World:
    """What outlives a gateway: the files, what the model says next, and which policy is in force."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.files = FakeFiles()
        self.script: list[ModelResponse] = []
        self.asked: list[InferenceRequest] = []
        self.policies = {"v1": a_policy()}
        self.in_force = InForce(self.policies["v1"], "v1")

    def put_in_force(self, name: str, policy: Policy) -> None:
        self.policies[name] = policy
        self.in_force.replace(InForce(policy, name))

    # --- gateway.tenancy.tenants.Tenants ---

    async def named(self, name: str) -> Tenant:
        return Tenant(name, self.in_force, MODEL, {"default": AgentSettings()})

    async def at(self, name: str, reference: str) -> Tenant:
        return replace(await self.named(name), source=InForce(self.policies[reference], reference))

    # --- gateway.agents.models.Models ---

    def of(self, settings: ModelSettings, charges: Charges | None = None) -> Model:
        return self if charges is None else ChargedModel(self, charges, Prices(1.0, 2.0))

    async def close(self) -> None:
        """There is nothing to close."""

    # --- agent.model.Model ---

    name = "world"

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        self.asked.append(request)
        return self.script.pop(0)

    # --- sandbox.keeper.sandbox_keeper.SandboxKeeper ---

    @asynccontextmanager
    async def acquire(self, spec: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(files=self.files)


class Host:
    """A gateway, as far as runs are concerned."""

    def __init__(self, world: World, name: str = "gw1") -> None:
        self.world = world
        self.store = Store(world.database, gateway=name)
        self.asked = ApprovalStore(world.database)
        tool_calls = made_tool_calls(world.database, world, store=self.store, approvals=self.asked)
        waiting = WaitingStore(world.database, gateway=name)
        self.waiting = WaitingRuns(waiting, self.asked, world, poll_s=0.01, others_after_s=0.05)
        self.tool_calls = tool_calls
        self.models = {"acme": cast(Models, world)}
        self.quotas = made_quotas(world.database, name)
        self.runs = Runs(
            RunParts(
                self.store, tool_calls, waiting=self.waiting, quotas=self.quotas, on_stop="cancel", models=self.models
            )
        )
        self.approvals = Approvals(self.asked, resolved=lambda _: self.waiting.look(), poll_s=0.01)

    async def start(self, **settings: Any) -> Run:
        return await self.runs.start(await self.world.named("acme"), RunRequest("write it", "t", **settings))

    async def status(self, run: Run, *wanted: str) -> Run:
        async with asyncio.timeout(20):
            while True:
                found = await self.runs.get(await self.world.named("acme"), run.id)
                if found.status in wanted and (found.status == "running" or run.id not in self.runs.live):
                    return found
                await asyncio.sleep(0.01)

    async def waits(self, **settings: Any) -> tuple[Run, str]:
        """Start a run that waits; return it and the approval."""
        run = await self.start(**settings)
        await self.status(run, "waiting")
        return run, (await self.pending(run))[0]

    async def pending(self, run: Run) -> Sequence[str]:
        acme = await self.world.named("acme")
        found, _ = await self.approvals.page(acme, status="pending", thread="", run_id=run.id, size=0, token="")
        return [one.id for one in found]

    async def answer(self, approval_id: str, answer: str = "allow_once", **more: Any) -> None:
        await self.approvals.resolve(await self.world.named("acme"), approval_id, answer, by="key", **more)

    async def events(self, run: Run, sequence: int = 1) -> list[LoggedEvent]:
        async with asyncio.timeout(20):
            return [one async for one in self.runs.watch(await self.world.named("acme"), run.id, sequence)]

    async def crash(self) -> None:
        """End without a word, as a killed process does."""
        await self.runs.stop_following()
        assert self.runs.live == {}


def writes(path: str = "/workspace/a", content: str = "1", id_: str = "x") -> ToolCall:
    return ToolCall(id=id_, name="write_file", arguments={"path": path, "content": content})


@pytest.fixture
async def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    database = await Database.open(database_url)
    made = World(database)
    made.script = [says("I write.", writes()), says("Written.")]
    yield made
    await database.close()


@pytest.fixture
async def host(world: World) -> AsyncIterator[Callable[[str], Host]]:
    hosts: list[Host] = []

    def make(name: str = "gw1") -> Host:
        hosts.append(Host(world, name))
        return hosts[-1]

    yield make
    for one in hosts:
        await one.runs.close()


async def test_a_waiting_run_is_no_task_and_goes_on_when_approved(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    assert world.files.files == {}
    assert gateway.runs.live == {}
    watched = asyncio.create_task(gateway.events(run))
    await gateway.answer(approval_id)
    events = await watched
    assert world.files.files == {"/workspace/a": b"1"}
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    types = [event.type for event in events]
    assert types.index("run_suspended") + 1 == types.index("run_resumed")
    assert json.loads(events[-1].payload)["answer"] == "Written."
    assert (await gateway.status(run, "completed")).stop_rule == "stop"
    thread = await gateway.store.thread("acme", "t")
    said = await gateway.store.messages_of(thread)
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]


async def test_it_survives_two_crashes_and_another_gateway_may_go_on(world: World, host: Callable[..., Host]) -> None:
    first = host("gw1")
    run, approval_id = await first.waits()
    await first.crash()
    second = host("gw1")
    assert await second.pending(run) == [approval_id]
    await second.crash()
    third = host("gw2")
    await third.answer(approval_id)
    await third.status(run, "completed")
    assert world.files.files == {"/workspace/a": b"1"}
    rows = await world.database.rows(select(runs_table.c.gateway, runs_table.c.checkpoint))
    assert tuple(rows[0]) == ("gw2", None)


async def test_of_several_gateways_one_goes_on(world: World, host: Callable[..., Host]) -> None:
    gateways = [host(f"gw{number}") for number in range(3)]
    run, approval_id = await gateways[0].waits()
    await gateways[2].answer(approval_id)
    await gateways[1].status(run, "completed")
    events = await gateways[1].events(run)
    assert [event.type for event in events].count("run_resumed") == 1
    assert len(world.asked) == 2


async def test_the_thread_is_busy_while_a_run_of_it_waits(host: Callable[..., Host]) -> None:
    gateway = host()
    run, _ = await gateway.waits()
    for one in (gateway, host("gw2")):
        with pytest.raises(ThreadBusy, match="waiting for an approval") as busy:
            await one.start()
        assert busy.value.details == {"run_id": run.id}


async def test_a_refusal_and_its_words_reach_the_model(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    await gateway.answer(approval_id, "deny", message="ask the owner first")
    await gateway.status(run, "completed")
    assert world.files.files == {}
    reported = world.asked[-1].messages[-1].content
    assert "an approver denied the call: ask the owner first" in reported
    assert "looked-at" in reported


async def test_an_unanswered_question_is_a_refusal(world: World, host: Callable[..., Host]) -> None:
    world.put_in_force("short", a_policy(approval_s=0.2))
    gateway = host()
    run = await gateway.start()
    await gateway.status(run, "completed")
    assert world.files.files == {}
    assert "not given within 0." in world.asked[-1].messages[-1].content


async def test_edited_arguments_run_in_the_place_of_the_models(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    edited = json.dumps({"path": "/workspace/a", "content": "2"})
    await gateway.answer(approval_id, "edit", arguments_json=edited)
    await gateway.status(run, "completed")
    assert world.files.files == {"/workspace/a": b"2"}
    assert "an approver changed the arguments" in world.asked[-1].messages[-1].content


async def test_a_pinned_run_keeps_its_policy_over_a_wait(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    world.put_in_force("v2", a_policy("deny"))
    await gateway.answer(approval_id)
    await gateway.status(run, "completed")
    assert world.files.files == {"/workspace/a": b"1"}


async def test_a_run_that_follows_meets_the_policy_in_force(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits(policy_mode="follow")
    world.put_in_force("v2", a_policy("deny"))
    await gateway.answer(approval_id)
    await gateway.status(run, "completed")
    assert world.files.files == {}


async def test_another_version_of_the_policy_asks_anew(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits(policy_mode="follow")
    world.put_in_force("v2", a_policy(note="another"))
    await gateway.answer(approval_id)
    async with asyncio.timeout(20):
        while not (again := await gateway.pending(run)):
            await asyncio.sleep(0.01)
    assert world.files.files == {}
    assert (await gateway.approvals.get(await world.named("acme"), approval_id)).status == "cancelled"
    await gateway.status(run, "waiting")
    await gateway.answer(again[0])
    await gateway.status(run, "completed")
    assert world.files.files == {"/workspace/a": b"1"}


async def test_several_calls_wait_until_all_are_answered(world: World, host: Callable[..., Host]) -> None:
    world.script[0] = says("", writes("/workspace/a"), writes("/workspace/b"), writes("/workspace/a"))
    gateway = host()
    run, _ = await gateway.waits()
    asked = await gateway.pending(run)
    assert len(asked) == 3
    for approval_id in asked[:2]:
        await gateway.answer(approval_id)
    assert (await gateway.runs.get(await world.named("acme"), run.id)).status == "waiting"
    assert world.files.files == {}
    await gateway.answer(asked[2], "deny")
    await gateway.status(run, "completed")
    assert set(world.files.files) == {"/workspace/a", "/workspace/b"}


async def test_what_is_granted_to_a_run_holds_to_its_end(world: World, host: Callable[..., Host]) -> None:
    world.script = [says("", writes()), says("", writes(content="2")), says("done"), says("", writes()), says("done")]
    gateway = host()
    run, approval_id = await gateway.waits()
    await gateway.answer(approval_id, "allow_run")
    await gateway.status(run, "completed")
    assert world.files.files == {"/workspace/a": b"2"}
    _, again = await gateway.waits()
    assert again != approval_id


async def test_a_waiting_run_can_be_cancelled(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    watched = asyncio.create_task(gateway.events(run))
    await gateway.runs.cancel(await world.named("acme"), run.id)
    events = await watched
    assert events[-1].type == "run_finished"
    assert json.loads(events[-1].payload)["status"] == "cancelled"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (await gateway.approvals.get(await world.named("acme"), approval_id)).status == "cancelled"
    world.script = [says("fine")]
    await gateway.status(await gateway.start(), "completed")


async def test_an_answer_that_a_cancelled_run_did_not_use_is_cancelled(world: World, host: Callable[..., Host]) -> None:
    world.script[0] = says("", writes("/workspace/a"), writes("/workspace/b", id_="y"))
    gateway = host()
    run, _ = await gateway.waits()
    asked = await gateway.pending(run)
    await gateway.answer(asked[0])
    acme = await world.named("acme")
    await gateway.runs.cancel(acme, run.id)
    await gateway.status(run, "cancelled")
    assert [(await gateway.approvals.get(acme, one)).status for one in asked] == ["cancelled"] * 2
    assert world.files.files == {}


async def test_an_answer_that_a_run_ended_without_using_is_cancelled(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits(policy_mode="follow")
    world.put_in_force("v2", a_policy("deny"))
    await gateway.answer(approval_id)
    await gateway.status(run, "completed")
    assert (await gateway.approvals.get(await world.named("acme"), approval_id)).status == "cancelled"


async def test_what_is_granted_to_a_run_is_not_in_force_when_it_is_over(
    world: World, host: Callable[..., Host]
) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    acme = await world.named("acme")
    world.script = [says("", writes(content="2", id_="y"), writes("/workspace/b", id_="z")), says("done")]
    await gateway.answer(approval_id, "allow_run")
    (grant,), _ = await gateway.approvals.grants(acme, thread="", include_ended=False, size=0, token="")
    assert grant.run_id == run.id
    async with asyncio.timeout(20):
        while not (again := await gateway.pending(run)):
            await asyncio.sleep(0.01)
    assert (await gateway.approvals.get(acme, approval_id)).status == "used"
    await gateway.status(run, "waiting")
    await gateway.answer(again[0])
    await gateway.status(run, "completed")
    finished = [json.loads(one.payload) for one in await gateway.events(run) if one.type == "tool_call_finished"]
    assert [one["approval_id"] for one in finished] == [approval_id, approval_id, again[0]]
    assert await gateway.approvals.grants(acme, thread="", include_ended=False, size=0, token="") == ([], "")
    (ended,), _ = await gateway.approvals.grants(acme, thread="", include_ended=True, size=0, token="")
    assert (ended.id, ended.in_force, ended.revoked_us) == (grant.id, False, None)


@pytest.mark.parametrize("read", ["of_calls", "messages_of", "metadata_of", "at", "run"])
async def test_a_database_that_fails_while_a_run_goes_on_is_not_its_end(
    world: World, host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    owner: Any = next(one for one in (gateway.asked, gateway.store, world) if hasattr(one, read))
    works, faults = getattr(owner, read), [Unavailable("the database does not answer")] * 2

    async def fails(*given: Any) -> Any:
        if faults:
            raise faults.pop()
        return await works(*given)

    monkeypatch.setattr(owner, read, fails)
    await gateway.answer(approval_id, "edit", arguments_json='{"path": "/workspace/a", "content": "2"}')
    async with asyncio.timeout(20):
        while faults:  # nothing else reads meanwhile
            await asyncio.sleep(0.01)
    assert (await gateway.status(run, "completed", "failed")).status == "completed"
    assert world.files.files == {"/workspace/a": b"2"}
    types = [one.type for one in await gateway.events(run)]
    assert types.count("run_resumed") == 1


async def test_a_gateway_that_stops_leaves_waiting_runs_alone(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    run, approval_id = await gateway.waits()
    watched = asyncio.create_task(gateway.events(run))
    await asyncio.sleep(0)
    await gateway.runs.close()
    with pytest.raises(Unavailable, match="watch again from sequence"):
        await watched
    again = host()
    assert (await again.runs.get(await world.named("acme"), run.id)).status == "waiting"
    await again.answer(approval_id)
    await again.status(run, "completed")


async def test_the_state_of_a_waiting_run_does_not_hold_its_thread(world: World, host: Callable[..., Host]) -> None:
    gateway = host()
    world.script[0] = says("a remark " * 10_000, writes())
    await gateway.waits()
    rows = await world.database.rows(select(runs_table.c.checkpoint))
    stored = json.loads(rows[0].checkpoint)
    assert stored["state"]["messages"] == []
    assert stored["policy"] == "v1"
