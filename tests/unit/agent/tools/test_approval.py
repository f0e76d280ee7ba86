"""A run that must ask: it is suspended as data, and goes on in any process as if it had not stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pydantic import JsonValue

from agent.agent import Agent
from agent.capabilities.limits import limits
from agent.hooks.hook import Hook, NextToolUse
from agent.loop import Host
from agent.messages import ToolResult
from agent.state import AgentState, PolicyWord, ToolExecution
from agent.tools.approval import Approver, Denied, Granted, Pending
from agent.tools.runner import ToolRunner
from agent.tools.tool import Capability, ToolContext
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import AnyArguments, Events, PolicyThat, SaysInTurn, call, says, state, tool

ANSWERED = "the end"


class FakeApprover:
    """An approver with answers by the call's id; who is not in `answers` waits."""

    def __init__(self, **answers: Granted | Denied | Exception) -> None:
        self.answers: dict[str, Granted | Denied | Exception] = dict(answers)
        self.edits: dict[str, dict[str, JsonValue]] = {}
        self.asked: list[str] = []
        self.used: list[str] = []
        self.refusal = ""

    async def edited(self, state: AgentState, call_ids: Sequence[str]) -> Mapping[str, dict[str, JsonValue]]:
        return {id_: self.edits[id_] for id_ in call_ids if id_ in self.edits}

    async def answer(self, state: AgentState, execution: ToolExecution) -> Granted | Denied | Pending:
        self.asked.append(execution.call.id)
        answer = self.answers.get(execution.call.id, Pending(f"apr_{execution.call.id}"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def use(self, granted: Granted) -> str:
        self.used.append(granted.approval_id)
        return self.refusal


def asking(*names: str) -> PolicyThat:
    """Return a policy that asks about these tools and lets the others pass."""

    def judge(state: AgentState) -> AgentState:
        word = PolicyWord(version="policy_1", asked=("a part",))
        if state.current.tool.call.name in names:
            return state.ask("policy", "close-call", "somebody should look", word)
        return state.proceed("policy", "fine", "harmless", word)

    return PolicyThat(judge)


class Ran(list[dict[str, Any]]):
    """What the tools ran with."""

    def tool(self, name: str, *, then: Callable[[], None] = lambda: None) -> Any:
        async def run(arguments: AnyArguments, context: ToolContext) -> ToolResult:
            self.append({"tool": name, **(arguments.model_extra or {})})
            then()
            return ToolResult(f"{name} done".encode())

        return tool(name, run)


class Counts(Hook):
    """Counts its before passes, in the state."""

    name = "counts"
    mandatory = True

    async def before_tool_use(self, state: AgentState) -> AgentState:
        before = state.notes.get("counts", 0)
        return state.with_note("counts", (before if isinstance(before, int) else 0) + 1)


class Clock:
    """A clock that tests move."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def an_agent(
    approver: Approver | None, ran: Ran, *responses: Any, hooks: Sequence[Hook] = (), **settings: Any
) -> Agent:
    ids = iter(f"c{number}" for number in range(1, 100))
    return Agent(
        model=SaysInTurn(*responses),
        capabilities=(Capability("tools", tools=(ran.tool("risky"), ran.tool("safe"))), *settings.pop("more", ())),
        hooks=(*hooks, asking("risky")),
        host=Host(approver=approver, new_call_id=lambda: next(ids), **settings),
    )


def stored(suspended: AgentState) -> AgentState:
    """Return the state as another process would read it."""
    return AgentState.model_validate_json(suspended.model_dump_json())


async def test_no_call_of_the_step_runs_while_one_waits() -> None:
    ran, approver, events = Ran(), FakeApprover(), Events()
    agent = an_agent(approver, ran, says("", call("safe"), call("risky", n=1), call("risky", n=2)), says(ANSWERED))
    suspended = await agent.run(state(), events)
    assert ran == []
    assert approver.used == []
    assert suspended.pending is not None
    assert suspended.stop is None
    assert events[-1].type == "run_suspended"
    asked = events[-1].payload["approvals"]
    assert isinstance(asked, list)
    expected = {"approval_id": "apr_c2", "call_id": "c2", "name": "risky", "rule": "close-call"}
    assert asked[0] == {**expected, "reason": "somebody should look"}
    assert [one["call_id"] for one in asked if isinstance(one, dict)] == ["c2", "c3"]
    assert events.of("run_finished") == []
    assert events.of("step_finished") == []


async def test_a_granted_run_goes_on_in_another_process() -> None:
    ran, events = Ran(), Events()
    suspended = await an_agent(FakeApprover(), ran, says("", call("safe", x="\ud800"), call("risky", n=1))).run(state())
    approver = FakeApprover(c2=Granted("apr_c2"))
    ended = await an_agent(approver, ran, says(ANSWERED)).run(stored(suspended), events)
    assert ran == [{"tool": "safe", "x": "\ud800"}, {"tool": "risky", "n": 1}]
    assert approver.used == ["apr_c2"]
    assert next(event.type for event in events) == "run_resumed"
    assert events.of("step_finished")[0]["step"] == 1
    assert events[-1].payload["answer"] == ANSWERED
    assert ended.pending is None
    assert ended.steps == 2
    assert [message.role for message in ended.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    finished = events.of("tool_call_finished")[1]
    assert (finished["verdict"], finished["approval_id"]) == ("ask", "apr_c2")
    assert finished["policy_version"] == "policy_1"


async def test_a_run_may_wait_several_times_in_one_step() -> None:
    ran = Ran()
    waits = await an_agent(FakeApprover(), ran, says("", call("risky"), call("risky"))).run(state())
    waits = await an_agent(FakeApprover(c1=Granted("a")), ran).run(stored(waits))
    assert waits.pending is not None
    assert ran == []
    approver = FakeApprover(c1=Granted("a"), c2=Granted("b"))
    ended = await an_agent(approver, ran, says(ANSWERED)).run(stored(waits))
    assert len(ran) == 2
    assert ended.tool_calls == 2


async def test_hooks_run_again_and_what_they_wrote_before_the_wait_counts_once() -> None:
    ran = Ran()
    suspended = await an_agent(FakeApprover(), ran, says("", call("risky")), hooks=[Counts()]).run(state())
    assert "counts" not in suspended.notes
    ended = await an_agent(FakeApprover(c1=Granted("a")), ran, says(ANSWERED), hooks=[Counts()]).run(stored(suspended))
    assert ended.notes["counts"] == 1


async def test_the_model_reads_why_an_approver_refused() -> None:
    ran, events = Ran(), Events()
    suspended = await an_agent(FakeApprover(), ran, says("", call("risky"))).run(state())
    approver = FakeApprover(c1=Denied("an approver denied the call: use the staging server", "apr_c1"))
    ended = await an_agent(approver, ran, says(ANSWERED)).run(stored(suspended), events)
    assert ran == []
    reported = ended.messages[-2].content
    assert "Blocked by rule close-call of policy: an approver denied the call: use the staging server" in reported
    assert "policy_1" in reported
    finished = events.of("tool_call_finished")[0]
    assert (finished["verdict"], finished["outcome"], finished["approval_id"]) == ("deny", "blocked", "apr_c1")


@pytest.mark.parametrize("failing", ["answer", "use"])
async def test_an_approver_that_fails_lets_nothing_run(failing: str) -> None:
    ran = Ran()
    approver = FakeApprover(c1=RuntimeError("gone") if failing == "answer" else Granted("a"))
    approver.refusal = "used already" if failing == "use" else ""
    ended = await an_agent(approver, ran, says("", call("risky")), says(ANSWERED)).run(state())
    assert ran == []
    assert "did not run" in ended.messages[-2].content


async def test_edited_arguments_are_what_the_hooks_see_and_what_runs() -> None:
    ran = Ran()
    suspended = await an_agent(FakeApprover(), ran, says("", call("risky", n=1))).run(state())
    approver = FakeApprover(c1=Granted("a", note="[an approver changed the arguments]"))
    approver.edits["c1"] = {"n": 2}
    agent = an_agent(approver, ran, says(ANSWERED))
    ended = await agent.run(stored(suspended))
    assert ran == [{"tool": "risky", "n": 2}]
    assert agent.hooks.innermost is not None
    assert getattr(agent.hooks.innermost, "seen", None) == [{"n": 2}]
    assert ended.messages[-2].content == "risky done\n[an approver changed the arguments]"


async def test_waiting_does_not_count_against_the_time() -> None:
    ran, clock = Ran(), Clock()

    class Slow(Hook):
        name = "slow"

        async def before_inference(self, state: AgentState) -> AgentState:
            clock.now_s += 3
            return state

        async def before_tool_use(self, state: AgentState) -> AgentState:
            clock.now_s += 1
            return state

    agent = an_agent(FakeApprover(), ran, says("", call("risky")), hooks=[Slow()], clock=clock)
    suspended = await agent.run(state())
    assert suspended.active_s == pytest.approx(4)
    clock.now_s += 100_000
    more = (limits(execution_time_s=10),)
    agent = an_agent(FakeApprover(c1=Granted("a")), ran, says(ANSWERED), hooks=[Slow()], clock=clock, more=more)
    ended = await agent.run(stored(suspended))
    assert ran
    assert ended.active_s == pytest.approx(8)
    assert ended.stop is not None
    assert ended.stop.rule != "max_seconds"


async def test_what_is_left_of_the_time_holds_after_the_wait() -> None:
    ran = Ran()
    suspended = await an_agent(FakeApprover(), ran, says("", call("risky"))).run(state())
    late = stored(suspended).with_(active_s=11.0)
    ended = await an_agent(FakeApprover(c1=Granted("a")), ran, says(ANSWERED), more=(limits(execution_time_s=10),)).run(
        late
    )
    assert ran == []
    assert ended.stop is not None
    assert ended.stop.rule == "max_seconds"


async def test_a_run_that_is_cancelled_after_its_wait_says_so() -> None:
    ran, events = Ran(), Events()
    suspended = await an_agent(FakeApprover(), ran, says("", call("risky"))).run(state())
    begun = asyncio.Event()

    class Holds(Hook):
        name = "holds"

        async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
            begun.set()
            await asyncio.Event().wait()
            return await next_(tool)

    agent = an_agent(FakeApprover(c1=Granted("a")), ran, hooks=[Holds()])
    task = asyncio.create_task(agent.run(stored(suspended), events))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events[-1].type == "run_finished"
    assert events[-1].payload["status"] == "cancelled"


async def test_without_an_approver_what_would_be_asked_is_blocked() -> None:
    ran = Ran()
    ended = await an_agent(None, ran, says("", call("risky")), says(ANSWERED)).run(state())
    assert ran == []
    assert "no approver is configured" in ended.messages[-2].content


async def test_a_subagent_reads_who_can_ask() -> None:
    ran = Ran()
    ended = await an_agent(None, ran, says("", call("risky")), says(ANSWERED)).run(state(depth=1))
    assert "a subagent cannot wait for an approval" in ended.messages[-2].content


class Twice(Hook):
    """A ring that executes each call twice."""

    name = "twice"

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        await next_(tool)
        return await next_(tool)


async def test_a_call_that_a_ring_repeats_is_judged_again() -> None:
    ran, closed = Ran(), []

    def judge(state: AgentState) -> AgentState:
        if closed:
            return state.block("policy", "office-hours", "closed by now")
        return state.proceed("policy", "office-hours", "open")

    agent = Agent(
        model=SaysInTurn(says("", call("safe")), says(ANSWERED)),
        capabilities=(Capability("tools", tools=(ran.tool("safe", then=lambda: closed.append(1)),)),),
        hooks=(Twice(), PolicyThat(judge)),
    )
    ended = await agent.run(state())
    assert len(ran) == 1
    assert "Blocked by rule office-hours of policy: closed by now" in ended.messages[-2].content


async def test_a_repeated_call_that_still_passes_runs_again() -> None:
    ran = Ran()
    await an_agent(None, ran, says("", call("safe")), says(ANSWERED), hooks=[Twice()]).run(state())
    assert len(ran) == 2


async def test_an_approval_is_for_one_execution() -> None:
    ran, approver = Ran(), FakeApprover(c1=Granted("a"))
    ended = await an_agent(approver, ran, says("", call("risky")), says(ANSWERED), hooks=[Twice()]).run(state())
    assert len(ran) == 1
    assert "approved once" in ended.messages[-2].content


async def test_a_call_of_a_service_that_waits_ends_as_waiting() -> None:
    ran = Ran()
    agent = an_agent(None, ran)
    runner = ToolRunner(agent.hooks, Toolbox([ran.tool("risky")]), Events(), approver=FakeApprover())
    ended = await runner.run(state(), [call("risky")])
    execution = ended.current.tool_executions[0]
    assert execution.waiting
    assert not execution.blocked
    assert execution.approval_id == "apr_c1"
    assert ran == []
