"""Quotas on a real SQLite file with a clock that stands still: windows, refusals, holds, and the hook in an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from google.rpc import error_details_pb2
from sqlalchemy import func, select, update

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import ModelUnavailable
from agent.hooks.hook import InferenceRequest
from agent.messages import Attachment, Message, ToolCall, ToolResult, Usage
from agent.models.model import Model, OnDelta
from agent.state import AgentState, CurrentExecution, ModelResponse, ToolExecution
from agent.subagents.capability import Subagent, subagents
from agent.tool_call import CallContext
from agent.tools.runner import ToolRunner
from agent.tools.tool import Capability
from agent.tools.toolbox import Toolbox
from gateway.errors import QuotaExceeded, Unavailable
from gateway.policy.decision import Decision, Effect, RuleLimit
from gateway.policy.document import QuotasSection
from gateway.serving.edge import status_of
from gateway.storage.database import Database
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import NewRun, Store
from gateway.storage.tables import counters, holds, tool_calls
from gateway.storage.waiting_store import LeaseStore
from gateway.tenancy.quotas import CallQuota, Quotas
from gateway.tool_calls.quota_hook import REFUSED, QuotaHook
from tests.unit.agent.fakes import AnyArguments, Events, allowing, call, execution_of, says, tool
from tests.unit.gateway.filled_database import fill
from tests.unit.gateway.stored_steps import keep_step

_MINUTE_US = 60_000_000
# 2026-11-21, a quarter past a minute.
_NOON_US = 1_795_262_400_000_000
_START_US = _NOON_US + _MINUTE_US // 4


class Clock:
    """Time that goes on when the test says so."""

    def __init__(self) -> None:
        self.now_us = _START_US
        self.passed_s = 0.0

    def __call__(self) -> int:
        return self.now_us

    def monotonic_s(self) -> float:
        """Return how much time has passed, whatever the time of day was set to."""
        return self.passed_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def quotas(database: Database, clock: Clock) -> Quotas:
    return Quotas(QuotaStore(database, "gw_a"), clock=clock, monotonic_s=clock.monotonic_s)


async def _rows(database: Database, table: Any) -> int:
    return int((await database.rows(select(func.count()).select_from(table)))[0][0])


async def _used(database: Database, name: str) -> int:
    query = select(func.coalesce(func.sum(counters.c.used), 0)).where(counters.c.tenant == "t", counters.c.name == name)
    return int(await database.scalar(query))


async def _refused(work: Any) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await work
    return caught.value


# --- calls in windows of the clock ---


async def test_a_minute_holds_so_many_calls_and_the_next_one_as_many(quotas: Quotas, clock: Clock) -> None:
    per_minute = QuotasSection(tool_calls_per_minute=2)
    for n in range(2):
        await quotas.take_call("t", CallQuota(f"c{n}"), (), per_minute)
    refused = await _refused(quotas.take_call("t", CallQuota("c2"), (), per_minute))
    assert refused.details == {"quota": "tool_calls_per_minute", "limit": "2"}
    assert refused.retry_after_s == 45.0
    await quotas.take_call("other", CallQuota("c3"), (), per_minute)
    clock.now_us += 45_000_000 - 1
    assert (await _refused(quotas.take_call("t", CallQuota("c4"), (), per_minute))).retry_after_s == 1e-6
    clock.now_us += 1
    await quotas.take_call("t", CallQuota("c5"), (), per_minute)


async def test_a_rule_lets_so_many_calls_pass_and_other_rules_theirs(quotas: Quotas, clock: Clock) -> None:
    rate, other = RuleLimit("r", calls=1, per_s=3600), RuleLimit("operator/r", calls=1, per_s=3600)
    await quotas.take_call("t", CallQuota("c1"), [rate], QuotasSection())
    await quotas.take_call("t", CallQuota("c2"), [other], QuotasSection())
    refused = await _refused(quotas.take_call("t", CallQuota("c3"), [rate], QuotasSection()))
    assert (refused.details["rule"], refused.details["quota"]) == ("r", "rate")
    assert refused.retry_after_s == 3600.0 - 15.0
    clock.now_us += 60 * _MINUTE_US
    await quotas.take_call("t", CallQuota("c4"), [rate], QuotasSection())


async def test_a_call_that_one_limit_refuses_uses_its_place_in_the_minute_and_nothing_of_the_others(
    quotas: Quotas,
    database: Database,
) -> None:
    per_minute, once = QuotasSection(tool_calls_per_minute=3), RuleLimit("r", calls=1, per_s=60)
    other = RuleLimit("s", calls=2, per_s=60)
    await quotas.take_call("t", CallQuota("c1"), [once, other], per_minute)
    refused = await _refused(quotas.take_call("t", CallQuota("c2"), [once, other], per_minute))
    assert refused.details["rule"] == "r"
    assert await _used(database, "tool_calls_per_minute") == 2
    await quotas.take_call("t", CallQuota("c3"), [other], per_minute)
    assert (await _refused(quotas.take_call("t", CallQuota("c4"), [], per_minute))).details[
        "quota"
    ] == "tool_calls_per_minute"


async def test_the_limit_that_is_free_last_is_named(quotas: Quotas) -> None:
    per_minute, daily = QuotasSection(tool_calls_per_minute=1), RuleLimit("r", calls=1, per_s=86_400)
    await quotas.take_call("t", CallQuota("c1"), [daily], per_minute)
    assert (await _refused(quotas.take_call("t", CallQuota("c2"), [daily], per_minute))).details["rule"] == "r"


async def test_so_many_at_once_until_one_has_ended(quotas: Quotas) -> None:
    rule = RuleLimit("r", at_once=1)
    first = CallQuota("c1")
    await quotas.take_call("t", first, [rule], QuotasSection())
    refused = await _refused(quotas.take_call("t", CallQuota("c2"), [rule], QuotasSection()))
    assert (refused.details["rule"], refused.retry_after_s) == ("r", None)
    await quotas.end_call(first)
    await quotas.take_call("t", CallQuota("c3"), [rule], QuotasSection())


async def test_what_is_not_limited_costs_no_query_but_one_for_what_is_stored(clock: Clock) -> None:
    asked: list[str] = []

    class Nothing:
        """A store that may be asked what is stored, and nothing else."""

        async def stored(self, tenant: str) -> tuple[int, int]:
            asked.append(tenant)
            return 1, 1

    quotas = Quotas(Nothing(), clock=clock)  # type: ignore[arg-type]
    nothing = QuotasSection()
    await quotas.hold_run("t", "r1", nothing)
    call_quota = CallQuota("c1")
    await quotas.take_call("t", call_quota, (), nothing)
    await quotas.end_call(call_quota)
    await quotas.release_run("r1")
    assert await quotas.check_inference("t", nothing) is None
    await quotas.add("t", nothing, {"tokens_per_day": 5, "cost_usd_per_day": 5, "bytes_per_day": 5})
    assert asked == ["t"]


# --- what is stored ---


async def _say(store: Store, name: str, said: str, *, limit: int | None = None) -> None:
    """Have a thread with one message."""
    await keep_step(store, await store.thread("t", name, limit=limit), "run", 0, [Message(role="user", content=said)])


async def test_a_tenant_that_has_stored_its_bytes_begins_nothing_until_it_deletes_some(
    quotas: Quotas, database: Database, clock: Clock
) -> None:
    store, section = Store(database), QuotasSection(stored_bytes=10_000)
    for name in ("a", "b"):
        await _say(store, name, "x" * 5000)
    refused = await _refused(quotas.check_stored("t", section))
    assert (refused.details["quota"], refused.details["limit"], refused.retry_after_s) == (
        "stored_bytes",
        "10000",
        None,
    )
    assert any(detail.Is(error_details_pb2.QuotaFailure.DESCRIPTOR) for detail in status_of(refused).details)
    await _refused(quotas.hold_run("t", "r1", section))
    assert await _rows(database, holds) == 0
    stopped = await quotas.check_inference("t", section)
    assert stopped is not None
    await quotas.check_stored("other", section)
    await ErasureStore(database).remove_thread("t", "a", "somebody")
    await quotas.check_stored("t", section)


async def test_what_is_stored_is_looked_at_again_within_two_seconds(
    quotas: Quotas, database: Database, clock: Clock
) -> None:
    section = QuotasSection(stored_bytes=1000)
    await quotas.check_stored("t", section)
    await _say(Store(database), "a", "x" * 5000)
    await quotas.check_stored("t", section)
    clock.now_us -= 3_600_000_000  # the machine's clock is set back, and the reading grows old all the same
    clock.passed_s += 2.001
    await _refused(quotas.check_stored("t", section))


async def test_past_what_may_be_stored_there_is_a_reserve_for_what_adds_next_to_nothing(
    quotas: Quotas, database: Database, clock: Clock
) -> None:
    section, store = QuotasSection(stored_bytes=1000), Store(database)
    await _say(store, "a", "x" * 1000)
    refused = await _refused(quotas.check_stored("t", section))
    await quotas.check_stored("t", section, reserved=True)
    await _say(store, "b", "x" * 1024 * 1024)
    clock.passed_s += 2.001
    assert await _refused(quotas.check_stored("t", section, reserved=True)) is not None
    assert refused.details == {"quota": "stored_bytes", "limit": "1000"}


async def test_a_thread_past_the_quota_is_not_made_and_those_there_are_stay_of_use(database: Database) -> None:
    store = Store(database)
    made = await asyncio.gather(*(store.thread("t", f"n{n}", limit=3) for n in range(5)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in made) == ["QuotaExceeded"] * 2 + ["Thread"] * 3
    there = next(one for one in made if isinstance(one, Thread))
    assert await store.thread("t", there.name, limit=3) == there
    await store.thread("other", "n", limit=3)
    await ErasureStore(database).remove_thread("t", there.name, "somebody")
    await store.thread("t", "one more", limit=3)


async def test_what_is_stored_is_counted_to_the_byte_for_all_writers(database: Database) -> None:
    store = QuotaStore(database, "gw_a")
    for tenant in ("t", "other"):
        await fill(database, tenant, message="said é", payload="did", value='"known"', task="do", arguments="{}")
    _, before = await store.stored("t")
    longest = {"messages": 7, "events": 3, "thread_metadata": 7, "runs": 2, "tool_calls": 2, "approvals": 2}
    rest = sum(len(f"t {column}") for column in ("result", "edited_arguments"))
    assert before - 1 == sum(longest.values()) + rest + 256 * len(longest)  # 1 is what `fill` wrote into the count
    await database.write((update(tool_calls).where(tool_calls.c.tenant == "t").values(result="é" * 50), None))
    assert await store.stored("t") == (2, before + 100 - len("t result"))
    await database.write((update(tool_calls).where(tool_calls.c.tenant == "t").values(result=None), None))
    removed = await ErasureStore(database).remove_thread("t", "t name", "somebody")
    assert removed is not None
    assert await store.stored("t") == (1, 1)
    assert (await store.stored("other"))[1] > before - 1


# --- runs ---


async def test_a_run_more_than_the_quota_is_refused_until_one_ends(quotas: Quotas, database: Database) -> None:
    two = QuotasSection(runs_at_once=2)
    await quotas.hold_run("t", "r1", two)
    await quotas.hold_run("t", "r2", two)
    refused = await _refused(quotas.hold_run("t", "r3", two))
    assert (refused.details, refused.retry_after_s) == ({"quota": "runs_at_once", "limit": "2"}, None)
    await quotas.hold_run("other", "r4", two)
    await quotas.release_run("r1")
    await quotas.hold_run("t", "r3", two)
    await _refused(quotas.hold_run("t", "r5", two))
    assert await _rows(database, holds) == 3


async def test_runs_that_began_before_there_was_a_quota_count(quotas: Quotas, database: Database) -> None:
    store = Store(database)
    thread = await store.thread("t", "th")
    run = await store.add_run(thread, NewRun(agent="a", task="x", policy_version="p"))
    await _refused(quotas.hold_run("t", "r2", QuotasSection(runs_at_once=1)))
    await quotas.hold_run("t", run.id, QuotasSection(runs_at_once=1))  # not twice


async def test_the_places_of_a_gateway_that_was_killed_are_free_once_its_lease_is_over(
    quotas: Quotas, database: Database
) -> None:
    one, leases = QuotasSection(runs_at_once=1), LeaseStore(database)
    await leases.take("gw_a", 60_000_000)
    await quotas.hold_run("t", "r1", one)
    another = Quotas(QuotaStore(database, "gw_b"))
    await leases.reap(all_=True)
    await _refused(another.hold_run("t", "r2", one))
    await leases.end(["gw_a"])
    await leases.reap(all_=True)
    await another.hold_run("t", "r3", one)


async def test_a_run_that_waits_gives_back_what_its_calls_had_taken_and_will_take_again(
    quotas: Quotas, database: Database
) -> None:
    per_minute, rule = QuotasSection(tool_calls_per_minute=5), RuleLimit("r", at_once=1)
    ended, waits = CallQuota("ended"), CallQuota("waits")
    await quotas.take_call("t", ended, (), per_minute)
    await quotas.end_call(ended)
    await quotas.take_call("t", waits, [rule], per_minute)
    await quotas.take_call("t", CallQuota("anothers"), (), per_minute)
    quotas.give_up_call(waits)
    assert waits.taken is None
    await quotas.release_run("r1")
    assert await _used(database, "tool_calls_per_minute") == 2
    assert await _rows(database, holds) == 0


async def test_a_hold_that_could_not_be_released_is_released_with_the_next(
    quotas: Quotas, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = QuotasSection(runs_at_once=1)
    await quotas.hold_run("t", "r1", one)

    async def refuses(*_: object) -> None:
        raise Unavailable("locked")

    with monkeypatch.context() as patched:
        patched.setattr(database, "write", refuses)
        await quotas.release_run("r1")
    await quotas.hold_run("t", "r2", one)


# --- tokens and money ---


class Spends:
    """A model that uses as much each time; its subagents' model too."""

    name = "spends"

    def __init__(self, *answers: ModelResponse | Exception, usage: Usage) -> None:
        self._answers = list(answers)
        self._usage = usage

    async def infer(self, request: InferenceRequest, on_delta: OnDelta) -> ModelResponse:
        del request, on_delta
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer.model_copy(update={"usage": self._usage})


_USAGE = Usage(input_tokens=100, output_tokens=10, cost_usd=0.000_3)


def _hook(quotas: Quotas, limits: QuotasSection) -> QuotaHook:
    return QuotaHook(quotas, "t", lambda: limits)


async def _run(model: Model, hook: QuotaHook, capabilities: Sequence[Capability] = ()) -> AgentState:
    agent = Agent(model=model, capabilities=[flow(retries=1), limits(), *capabilities], hooks=[hook, allowing()])
    return await agent.run(AgentState(run_id="r1", thread="t", messages=(Message(role="user", content="do it"),)))


_DAILY = QuotasSection(tokens_per_day=10_000, cost_usd_per_day=1.0)


async def test_tokens_and_money_of_subagents_and_of_failed_attempts_are_counted_once(
    quotas: Quotas, database: Database
) -> None:
    failed = ModelUnavailable("half an answer")
    failed.usage = _USAGE
    parent = Spends(
        says("", ToolCall(id="", name="spawn_subagent", arguments={"name": "worker", "task": "work"})),
        failed,
        says("done"),
        usage=_USAGE,
    )
    worker = Spends(says("worked"), usage=_USAGE)
    definitions = {"worker": Subagent(description="works", system_prompt="You work.", model=worker)}
    state = await _run(parent, _hook(quotas, _DAILY), [subagents(definitions, parent)])
    assert state.stop is not None
    spent = state.spent.usage
    assert await _used(database, "tokens_per_day") == 4 * 110 == spent.input_tokens + spent.output_tokens
    assert await _used(database, "cost_usd_per_day") == 4 * 300


async def test_a_run_ends_before_it_asks_the_model_past_the_day(quotas: Quotas, clock: Clock) -> None:
    daily = QuotasSection(tokens_per_day=110)
    assert (await _run(Spends(says("done"), usage=_USAGE), _hook(quotas, daily))).usage == _USAGE
    state = await _run(Spends(usage=_USAGE), _hook(quotas, daily))
    assert state.stop is not None
    assert (state.stop.hook, state.stop.rule) == ("quota", "quota_tokens_per_day")
    assert "110" in state.stop.reason
    clock.now_us += 86_400_000_000
    assert (await _run(Spends(says("done"), usage=_USAGE), _hook(quotas, daily))).usage == _USAGE


async def test_money_is_added_up_without_drift(quotas: Quotas) -> None:
    limit = QuotasSection(cost_usd_per_day=0.003)
    hook = _hook(quotas, limit)
    for _ in range(10):
        state = await _run(Spends(says("done"), usage=_USAGE), hook)
        assert state.usage == _USAGE
    state = await _run(Spends(usage=_USAGE), hook)
    assert state.stop is not None
    assert state.stop.rule == "quota_cost_usd_per_day"


# --- tool calls through the hook ---


async def _reports(_a: AnyArguments, _c: object) -> ToolResult:
    return ToolResult(content=b"x" * 10)


async def _calls(
    hook: QuotaHook, *calls: ToolCall, run: Any = _reports, context: CallContext | None = None
) -> AgentState:
    agent = Agent(model=Spends(usage=_USAGE), capabilities=[Capability("c")], hooks=[hook, allowing()])
    runner = ToolRunner(agent.hooks, Toolbox([tool("go", run)]), Events())
    return await runner.run(AgentState(run_id="r1", thread="t"), calls, context=context or CallContext())


async def test_a_call_of_an_approved_ask_is_counted_though_no_rule_let_it_pass(quotas: Quotas) -> None:
    one = QuotasSection(tool_calls_per_minute=1)
    hook = _hook(quotas, one)
    state = await _calls(hook, call("go", "c1"), call("go", "c2"))
    outcomes = [execution.result.outcome for execution in state.current.tool_executions if execution.result]
    assert sorted(outcomes) == ["blocked", "completed"]


async def test_bytes_of_results_are_counted_and_refuse_the_next_call(quotas: Quotas, database: Database) -> None:
    daily = QuotasSection(bytes_per_day=15)
    hook = _hook(quotas, daily)
    await _calls(hook, call("go", "c1"))
    await _calls(hook, call("go", "c2"))
    assert await _used(database, "bytes_per_day") == 20
    refused = _execution("c3")
    assert await hook.take(_allowed(), refused) is not None
    refusal = refused.context.get(REFUSED)
    assert refusal is not None
    assert refusal.details["quota"] == "bytes_per_day"


async def test_bytes_of_files_that_the_model_is_shown_are_bytes_of_results(quotas: Quotas, database: Database) -> None:
    async def shows(_a: AnyArguments, _c: object) -> ToolResult:
        image = Attachment(path="/workspace/a.png", media_type="image/png", size_bytes=1000, sha256="0")
        return ToolResult(content=b"x" * 10, attachments=(image,))

    daily = QuotasSection(bytes_per_day=2000)
    await _calls(_hook(quotas, daily), call("go", "c1"), run=shows)
    assert await _used(database, "bytes_per_day") == 1010


def _execution(call_id: str) -> ToolExecution:
    asked = call("go", call_id)
    return execution_of(asked)


def _allowed(*rule_limits: RuleLimit) -> Decision:
    return Decision("allow", "r", "why", "policy_1", limits=rule_limits)


@pytest.mark.parametrize("verdict", ["deny", "ask"])
async def test_a_call_that_does_not_run_uses_its_place_in_the_minute_only(
    quotas: Quotas, database: Database, verdict: Effect
) -> None:
    two = QuotasSection(tool_calls_per_minute=2)
    hook = _hook(quotas, two)
    judged = Decision(verdict, "r", "why", "policy_1", limits=(RuleLimit("r", calls=1, per_s=60, at_once=1),))
    assert [await hook.take(judged, _execution(f"c{number}")) for number in range(2)] == [None, None]
    refused = await hook.take(judged, _execution("c2"))
    assert refused is not None
    assert refused[0] == "quota"
    assert await _used(database, "tool_calls_per_minute") == 2
    await quotas.release_run("r1")
    assert await _used(database, "tool_calls_per_minute") == 2
    assert await _rows(database, holds) == 0


async def test_a_call_that_was_asked_about_takes_what_its_rule_limits_when_it_runs_and_no_second_place(
    quotas: Quotas,
) -> None:
    one = QuotasSection(tool_calls_per_minute=1)
    hook = _hook(quotas, one)
    asked = Decision("ask", "r", "why", "policy_1", limits=(RuleLimit("r", calls=1, per_s=60),))
    first = _execution("c1")
    assert await hook.take(asked, first) is None
    state = await _calls(hook, first.call, context=first.context)
    assert [one.result.outcome for one in state.current.tool_executions if one.result] == ["completed"]
    assert (await _refused(quotas.take_call("t", CallQuota("c2"), asked.limits, QuotasSection()))).details[
        "rule"
    ] == "r"


async def test_holds_are_released_when_a_call_failed_or_was_cancelled(quotas: Quotas, database: Database) -> None:
    hook = _hook(quotas, QuotasSection())
    began = asyncio.Event()

    async def fails(_a: AnyArguments, _c: object) -> object:
        raise RuntimeError("no")

    first, second = _execution("c1"), _execution("c2")
    assert await hook.take(_allowed(RuleLimit("r", at_once=1)), first) is None
    await _calls(hook, first.call, run=fails, context=first.context)
    assert await _rows(database, holds) == 0

    async def stays(_a: AnyArguments, _c: object) -> object:
        began.set()
        await asyncio.Event().wait()

    assert await hook.take(_allowed(RuleLimit("r", at_once=1)), second) is None
    assert await hook.take(_allowed(RuleLimit("r", at_once=1)), _execution("c3")) == (
        "r",
        "rule r allows 1 call at once, and that many are running: try again when one has finished",
    )
    task = asyncio.create_task(_calls(hook, second.call, run=stays, context=second.context))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _rows(database, holds) == 0
    assert await _rows(database, counters) == 1  # the lock of the holds


async def test_a_suspended_step_gives_up_what_its_calls_took(quotas: Quotas, database: Database) -> None:
    hook, taken = _hook(quotas, QuotasSection()), _execution("c1")
    assert await hook.take(_allowed(RuleLimit("r", at_once=1)), taken) is None
    step = CurrentExecution(tool_executions=(taken, _execution("c2")))
    hook.suspended(AgentState(run_id="r1", thread="t").with_(current=step))
    await quotas.release_run("r1")
    assert await _rows(database, holds) == 0


async def test_a_step_that_a_fault_ended_holds_nothing_once_the_run_is_over(quotas: Quotas, database: Database) -> None:
    hook, taken = _hook(quotas, QuotasSection()), _execution("c1")
    assert await hook.take(_allowed(RuleLimit("r", at_once=1)), taken) is None
    step = CurrentExecution(tool_executions=(taken, _execution("c2")))
    await hook.execution_end(AgentState(run_id="r1", thread="t").with_(current=step))
    assert await _rows(database, holds) == 0


# --- on the wire ---


def test_a_refusal_names_the_quota_and_when_to_try_again() -> None:
    status = status_of(QuotaExceeded("used up", 1.5, quota="tokens_per_day", limit="7"))
    info, failure, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.QuotaFailure(),
        error_details_pb2.RetryInfo(),
    )
    assert [
        detail.Unpack(reported) for detail, reported in zip(status.details, (info, failure, retry), strict=True)
    ] == [True] * 3
    assert dict(info.metadata) == {"quota": "tokens_per_day", "limit": "7"}
    assert [(one.subject, one.description) for one in failure.violations] == [("tokens_per_day", "used up")]
    assert retry.retry_delay.ToMilliseconds() == 1500


def test_a_refusal_that_no_waiting_helps_has_no_time() -> None:
    assert len(status_of(QuotaExceeded("used up", quota="runs_at_once")).details) == 2
