"""What holds for every set of hooks: any priorities, points, manners, and ways to fail."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.errors import HookFailed
from agent.events import discard
from agent.hooks.engine import POINTS, HookEngine
from agent.hooks.hook import Hook, NextToolUse
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, ContinuationDecision, CurrentExecution, ToolExecution, VerdictKind
from agent.tools.runner import ToolRunner
from agent.tools.tool import Capability, ToolContext
from agent.tools.toolbox import Toolbox
from tests.examples import examples
from tests.unit.agent.fakes import Events, SaysInTurn, call, execution_of, says, state, tool

VERDICTS = {"proceed": VerdictKind.PROCEED, "ask": VerdictKind.ASK, "block": VerdictKind.BLOCK}
CONTINUATIONS = {
    "allow_stop": ContinuationDecision.ALLOW_STOP,
    "request_continuation": ContinuationDecision.REQUEST,
    "forbid_continuation": ContinuationDecision.FORBID,
}
FAILURES = ("raise", "hang", "garbage", "inner garbage", "unstorable")
# Failures and blocks end what can still be seen of the other acts, so these come more often.
ACTS = (*FAILURES, *VERDICTS, *CONTINUATIONS, *3 * ("proceed", "rewrite", "write", "pass"))
POLICY_ACTS = (*FAILURES, *VERDICTS, *6 * ("proceed", "rewrite"))
AFTER = {"after_inference", "after_tool_use", "after_step", "execution_end"}
TOOL_POINTS = {"before_tool_use", "after_tool_use"}


@dataclass(frozen=True)
class Plan:
    """What one hook is like."""

    name: str
    priority: int = 0
    points: frozenset[str] = frozenset(POINTS)
    acts: tuple[str, ...] = ()
    mandatory: bool = False
    open: bool = False
    innermost: bool = False

    @property
    def fails(self) -> bool:
        return any(act in FAILURES for act in self.acts)

    @property
    def fails_closed(self) -> bool:
        return self.fails and (self.mandatory or self.innermost or not self.open)


Log = list[tuple[str, str, Any]]


def act(plan: Plan, given_state: AgentState, point: str, index: int) -> Any:
    """Do one thing to the state, or fail."""
    what, done = plan.acts[index], given_state
    if (what in VERDICTS and point in TOOL_POINTS) or what in CONTINUATIONS:
        done = getattr(done, what)(plan.name, f"rule {index}", "why")
    elif what == "rewrite" and point == "before_tool_use":
        done = done.with_arguments({**(done.current.tool.call.arguments or {}), "by": plan.name})
    elif what == "write":
        written = list(done.metadata.get("written", []))  # type: ignore[call-overload, arg-type]
        done = done.with_metadata("written", [*written, [plan.name, point, index]])
    elif what == "raise":
        raise RuntimeError("boom")
    elif what == "garbage":
        return "garbage"
    elif what == "inner garbage":
        return done.with_(current="garbage")
    elif what == "unstorable":
        return done.with_metadata("unstorable", [{1, 2}])  # type: ignore[list-item]
    return done


def hook_of(plan: Plan, log: Log) -> Hook:
    """Return a hook that overrides the plan's points, writes down that it ran and what it saw, and acts."""

    async def at(point: str, given_state: AgentState) -> AgentState:
        saw = copy.deepcopy(given_state.current.tool.call.arguments) if point in TOOL_POINTS else None
        log.append((plan.name, point, saw))
        done: Any = given_state
        for index, what in enumerate(plan.acts):
            if what == "hang":
                await asyncio.Event().wait()
            done = act(plan, done, point, index)
            if not isinstance(done, AgentState):
                return done  # type: ignore[no-any-return]
        return done

    def method(point: str) -> Any:
        async def run(self: Hook, given_state: AgentState) -> AgentState:
            return await at(point, given_state)

        return run

    made = type("Planned", (Hook,), {point: method(point) for point in plan.points})()
    vars(made).update(name=plan.name, priority=plan.priority, mandatory=plan.mandatory, innermost=plan.innermost)
    made.on_failure = "open" if plan.open else "closed"
    # At 0 s a hook that waits for anything is out of time at once, so that no test waits.
    made.timeout_s = 0.0 if "hang" in plan.acts else 5.0
    return made  # type: ignore[no-any-return]


def plans(
    acts: tuple[str, ...] = ACTS, *, every_point: bool = False, least: int = 0, most: int = 7
) -> st.SearchStrategy[list[Plan]]:
    points = st.just(frozenset(POINTS)) if every_point else st.frozensets(st.sampled_from(POINTS), min_size=1)
    one = st.builds(
        Plan,
        name=st.just(""),
        priority=st.integers(-2, 2),
        points=points,
        acts=st.lists(st.sampled_from(acts), max_size=3).map(tuple),
        mandatory=st.booleans(),
        open=st.booleans(),
    )
    return st.lists(one, min_size=least, max_size=most).map(
        lambda made: [replace(p, name=f"h{n}") for n, p in enumerate(made)]
    )


# Most sets have a hook that fails or blocks, and then much else cannot be seen.
HARMLESS = ("proceed", "rewrite", "write", "pass")
MIXED = st.one_of(plans(every_point=True), plans(("ask", *HARMLESS), every_point=True))


def with_policy(given_plans: list[Plan], policy: Plan | None, position: int) -> list[Plan]:
    """Return the plans with the policy registered somewhere among them."""
    if policy is None:
        return given_plans
    position = min(position, len(given_plans))
    return [*given_plans[:position], policy, *given_plans[position:]]


POLICIES = st.none() | st.builds(
    Plan,
    name=st.just("policy"),
    priority=st.integers(-5, 5),
    acts=st.lists(st.sampled_from(POLICY_ACTS), max_size=2).map(tuple),
    innermost=st.just(True),
    mandatory=st.just(True),
)


def outermost_first(given_plans: list[Plan]) -> list[Plan]:
    """Return the order of before points, by the words of the design rather than by the engine's sorting."""
    by_priority = [
        plan
        for priority in range(5, -6, -1)
        for plan in given_plans
        if plan.priority == priority and not plan.innermost
    ]
    return by_priority + [plan for plan in given_plans if plan.innermost]


def about_a_call(**arguments: Any) -> AgentState:
    asked = call("t", **arguments)
    return state(current=CurrentExecution(tool_executions=(execution_of(asked),), tool_index=0))


# --- order ---


@examples(60)
@given(plans(), POLICIES, st.integers(0, 7))
async def test_every_registered_hook_runs_once_at_its_points_in_order_whatever_the_others_do(
    given_plans: list[Plan], policy: Plan | None, position: int
) -> None:
    every = with_policy(given_plans, policy, position)
    log: Log = []
    engine = HookEngine([hook_of(plan, log) for plan in every])
    for point in POINTS:
        log.clear()
        await engine.run(point, about_a_call(), discard)
        expected = [plan.name for plan in outermost_first(every) if point in plan.points]
        assert [name for name, _, _ in log] == (expected[::-1] if point in AFTER else expected)


class Ring(Hook):
    def __init__(self, name: str, priority: int, manner: str, on_failure: Any, log: list[str]) -> None:
        self.name, self.priority, self.manner, self.on_failure, self.log = name, priority, manner, on_failure, log

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        self.log.append(f"into {self.name}")
        if self.manner == "raise before":
            raise RuntimeError("boom")
        result = await next_(tool)
        self.log.append(f"out of {self.name}")
        if self.manner == "raise after":
            raise RuntimeError("boom")
        if self.manner == "garbage":
            return "garbage"  # type: ignore[return-value]
        return replace(result, content=result.content + self.name.encode())


RINGS = st.lists(
    st.tuples(
        st.integers(-2, 2),
        st.sampled_from(["pass", "pass", "raise before", "raise after", "garbage"]),
        st.sampled_from(["open", "open", "open", "closed"]),
    ),
    max_size=6,
)


@examples(100)
@given(RINGS)
async def test_rings_nest_like_before_points_and_what_they_wrap_happens_once_at_most(
    rings: list[tuple[int, str, str]],
) -> None:
    log: list[str] = []
    made = [Ring(str(n), priority, manner, policy, log) for n, (priority, manner, policy) in enumerate(rings)]

    async def center(asked: ToolCall) -> ToolResult:
        log.append("center")
        return ToolResult(b"")

    expected: list[str] = []

    def nest(order: list[Ring]) -> bytes | None:
        """Write the expected log; return the content, None for a failure that goes outwards."""
        if not order:
            expected.append("center")
            return b""
        ring, *inner = order
        expected.append(f"into {ring.name}")
        if ring.manner == "raise before":
            return nest(inner) if ring.on_failure == "open" else None
        content = nest(inner)
        if content is None:
            return None
        expected.append(f"out of {ring.name}")
        if ring.manner == "pass":
            return content + ring.name.encode()
        return content if ring.on_failure == "open" else None

    wanted = nest([ring for priority in range(2, -3, -1) for ring in made if ring.priority == priority])
    try:
        result = await HookEngine(made).around_tool_use(center, discard)(call("t"))
        content: bytes | None = result.content
    except HookFailed:
        content = None
    assert (content, log) == (wanted, expected)


# --- verdicts and arguments ---


@dataclass
class Judged:
    """What must come out of before_tool_use, by the words of the design."""

    arguments: dict[str, Any]
    kind: VerdictKind | None = None
    writer: tuple[str, str] | None = None
    saw: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: list[Any] = field(default_factory=list)

    def say(self, kind: VerdictKind, hook: str, rule: str) -> None:
        if self.kind is None or kind > self.kind:
            self.kind, self.writer = kind, (hook, rule)

    def meet(self, plan: Plan) -> None:
        self.saw[plan.name] = dict(self.arguments)
        if plan.fails:
            if plan.fails_closed:
                self.say(VerdictKind.BLOCK, plan.name, "hook_failed")
            return
        was_blocked = self.kind is VerdictKind.BLOCK
        for index, what in enumerate(plan.acts):
            if what in VERDICTS:
                self.say(VERDICTS[what], plan.name, f"rule {index}")
            elif what == "rewrite" and not was_blocked and not plan.innermost:
                self.arguments = {**self.arguments, "by": plan.name}
            elif what == "write":
                self.written.append([plan.name, "before_tool_use", index])

    def meet_policy(self, plan: Plan) -> None:
        if self.kind is VerdictKind.BLOCK:
            return self.meet(plan)
        own = Judged(self.arguments, written=self.written, saw=self.saw)
        own.meet(plan)
        if own.kind is None:
            own.say(VerdictKind.BLOCK, plan.name, "no_verdict")
        if self.kind is not VerdictKind.ASK or own.kind is VerdictKind.BLOCK:
            self.kind, self.writer = own.kind, own.writer
        return None


def finalised(tool: ToolExecution) -> ToolExecution:
    return tool.with_(call=tool.call.with_(arguments={**(tool.call.arguments or {}), "final": True}))


@examples(200)
@given(MIXED, POLICIES, st.integers(0, 7))
async def test_the_strictest_verdict_counts_with_its_first_writer_and_a_block_freezes_the_arguments(
    given_plans: list[Plan], policy: Plan | None, position: int
) -> None:
    every = with_policy(given_plans, policy, position)
    log: Log = []
    engine = HookEngine([hook_of(plan, log) for plan in every])
    final = await engine.run("before_tool_use", about_a_call(asked=1), discard, finalise=finalised)

    expected = Judged({"asked": 1})
    for plan in outermost_first(given_plans):
        expected.meet(plan)
    if expected.kind is not VerdictKind.BLOCK:
        expected.arguments = {**expected.arguments, "final": True}
    if policy is not None:
        expected.meet_policy(policy)

    verdict = final.current.tool.verdict
    assert (verdict and verdict.kind, verdict and (verdict.hook, verdict.rule)) == (expected.kind, expected.writer)
    assert final.current.tool.call.arguments == expected.arguments
    assert {name: saw for name, _, saw in log} == expected.saw
    assert final.metadata.get("written", []) == expected.written
    assert set(final.metadata) <= {"written"}


# --- continuation ---


@examples(150)
@given(plans(every_point=True), st.sampled_from(["before_step", "after_step", "should_continue", "after_inference"]))
async def test_forbid_beats_request_beats_allow_stop_with_the_first_writer_of_the_winning_kind(
    given_plans: list[Plan], point: Any
) -> None:
    final = await HookEngine([hook_of(plan, []) for plan in given_plans]).run(point, state(), discard)
    order = outermost_first(given_plans)
    spoken: list[tuple[ContinuationDecision, str, str]] = []
    for plan in reversed(order) if point in AFTER else order:
        if plan.fails_closed:
            spoken.append((ContinuationDecision.FORBID, plan.name, "hook_failed"))
        elif not plan.fails:
            for index, what in enumerate(plan.acts):
                if what in CONTINUATIONS:
                    spoken.append((CONTINUATIONS[what], plan.name, f"rule {index}"))
    outcome = final.current.continuation
    if not spoken:
        assert outcome is None
        return
    winning = max(kind for kind, _, _ in spoken)
    assert outcome is not None
    assert (outcome.decision, outcome.hook, outcome.rule) == next(said for said in spoken if said[0] is winning)


async def test_a_run_without_writes_may_stop() -> None:
    agent = Agent(model=SaysInTurn(says("hi")), capabilities=(Capability("flow"), Capability("limits")))
    final = await agent.run(state())
    assert final.stop is not None
    assert final.stop.decision is ContinuationDecision.ALLOW_STOP


# --- whole runs ---


class Watch(Hook):
    """Mandatory, and sees every point."""

    mandatory = True

    def __init__(self, name: str, priority: int) -> None:
        self.name, self.priority = name, priority
        self.saw: list[str] = []


def _watching(point: str) -> Any:
    async def watch(self: Watch, given_state: AgentState) -> AgentState:
        self.saw.append(point)
        return given_state

    return watch


for _point in POINTS:
    setattr(Watch, _point, _watching(_point))


class PolicyOn(Hook):
    """Blocks calls whose number is odd, and keeps what it judged."""

    name, innermost, mandatory = "policy", True, True

    def __init__(self) -> None:
        self.allowed: list[Any] = []

    async def before_tool_use(self, state: AgentState) -> AgentState:
        asked = state.current.tool.call
        assert asked.arguments is not None
        if asked.arguments.get("n", 0) % 2:  # type: ignore[operator]
            return state.block("policy", "odd", "odd numbers are not for agents")
        if not state.current.tool.blocked:
            self.allowed.append((asked.id, copy.deepcopy(asked.arguments)))
        return state.proceed("policy", "even", "even numbers are")


@examples(120)
@given(
    st.one_of(
        plans(HARMLESS, every_point=True, least=2, most=4),
        plans(("ask", "rewrite"), every_point=True, least=1, most=2),
        plans(most=5),
    ),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3),
)
async def test_mandatory_hooks_see_every_point_of_a_run_and_policy_exactly_what_executes(
    given_plans: list[Plan], steps: list[list[int]]
) -> None:
    outer, inner, policy = Watch("outer", 9), Watch("inner", -9), PolicyOn()
    ran: list[Any] = []

    async def record(asked: Any, context: ToolContext) -> ToolResult:
        ran.append((context.call_id, asked.model_dump()))
        return ToolResult(b"")

    said = [says("", *(call("t", n=n) for n in numbers)) for numbers in steps]
    events = Events()
    agent = Agent(
        model=SaysInTurn(*said, says("end")),
        capabilities=(flow(), limits(steps=6), Capability("tools", tools=(tool("t", record),))),
        hooks=(outer, *(hook_of(plan, []) for plan in given_plans), inner, policy),
    )
    final = await agent.run(state(), events)
    assert outer.saw == inner.saw
    assert outer.saw.count("execution_start") == outer.saw.count("execution_end") == 1
    assert outer.saw[-1] == "execution_end"
    started, finished = (events.of(type_) for type_ in ("tool_call_started", "tool_call_finished"))
    assert [payload["call_id"] for payload in started] == [payload["call_id"] for payload in finished]
    assert outer.saw.count("before_tool_use") == outer.saw.count("after_tool_use") == len(started) == final.tool_calls
    # What policy let pass and no outer hook wanted to ask about, for there is no approver here.
    asking = any("ask" in plan.acts and not plan.fails and "before_tool_use" in plan.points for plan in given_plans)
    assert sorted(ran) == ([] if asking else sorted(policy.allowed))
    assert [event.type for event in events].count("run_finished") == 1
    assert AgentState.model_validate_json(final.model_dump_json()) == final
    open_calls = {asked.id for message in final.messages for asked in message.tool_calls}
    assert open_calls == {message.tool_call_id for message in final.messages if message.role == "tool"}


# --- several calls in a step ---


def slow(log: list[str]) -> Callable[[Any, ToolContext], Any]:
    async def run(asked: Any, context: ToolContext) -> ToolResult:
        for _ in range(asked.turns):
            await asyncio.sleep(0)
        log.append(context.call_id)
        if asked.fails:
            raise RuntimeError(f"{context.call_id} failed")
        return ToolResult(f"{context.call_id} done".encode())

    return run


CALLS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6)
WRITERS = plans(("write", "write", "write", "raise", "hang", "block", "ask", "rewrite"), every_point=True, most=4)


def outcome_of(final: AgentState, events: Events) -> dict[str, Any]:
    """Return everything of a step that must not depend on which tool was faster."""
    of_calls = ("tool_call_started", "hook_verdict", "tool_call_finished")
    return {
        "metadata": final.metadata,
        "tool_calls": final.tool_calls,
        "calls": [(one.requested.id, one.call.arguments, one.verdict) for one in final.current.tool_executions],
        "results": [one.result for one in final.current.tool_executions],
        "events": [(e.type, e.payload["call_id"], e.payload.get("verdict")) for e in events if e.type in of_calls],
    }


@examples(40)
@given(WRITERS, CALLS)
async def test_a_step_ends_the_same_at_any_concurrency_and_no_write_is_lost(
    given_plans: list[Plan], asked: list[tuple[int, bool]]
) -> None:
    calls = [call("t", f"c{n}", turns=turns, fails=fails) for n, (turns, fails) in enumerate(asked)]
    outcomes = []
    for concurrency in range(1, 9):
        events, ended = Events(), list[str]()
        engine = HookEngine([hook_of(plan, []) for plan in given_plans])
        runner = ToolRunner(engine, Toolbox([tool("t", slow(ended))]), events, concurrency=concurrency)
        outcomes.append(outcome_of(await runner.run(state(), calls), events))
        assert len(set(ended)) == len(ended)
    assert all(outcome == outcomes[0] for outcome in outcomes)

    order = [plan for plan in outermost_first(given_plans) if not plan.fails]
    writes = [
        [plan.name, point, index]
        for point, passing in (("before_tool_use", order), ("after_tool_use", order[::-1]))
        for _ in calls
        for plan in passing
        for index, what in enumerate(plan.acts)
        if what == "write"
    ]
    assert outcomes[0]["metadata"].get("written", []) == writes
    assert outcomes[0]["tool_calls"] == len(calls)
    assert [id_ for id_, _, _ in outcomes[0]["calls"]] == [one.id for one in calls]
