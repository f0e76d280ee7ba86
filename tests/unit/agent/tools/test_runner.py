"""The way of a tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.capabilities.filesystem import filesystem
from agent.events import discard
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook, NextToolUse, OnFailure
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, ToolExecution, VerdictKind
from agent.tool_call import Slot
from agent.tools.runner import ToolRunner
from agent.tools.tool import Tool, ToolContext
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import Events, FakeFiles, PolicyThat, allowing, call, done, state, tool


async def run(
    calls: Sequence[ToolCall],
    tools: Sequence[Tool],
    *hooks: Hook,
    events: Any = None,
    concurrency: int = 8,
) -> tuple[ToolExecution, ...]:
    runner = ToolRunner(
        HookEngine(hooks), Toolbox(tools), Events() if events is None else events, concurrency=concurrency
    )
    return (await runner.run(state(), calls)).current.tool_executions


def result_of(execution: ToolExecution) -> ToolResult:
    assert execution.result is not None
    return execution.result


async def never(*_: object) -> Any:
    raise AssertionError("the tool must not run")


async def test_a_blocked_call_does_not_run_and_the_model_reads_rule_and_reason() -> None:
    events = Events()
    policy = PolicyThat(lambda s: s.block("policy", "no-rm", "deleting is not for agents"))
    (execution,) = await run([call("rm")], [tool("rm", never)], policy, events=events)
    result = result_of(execution)
    assert (result.outcome, result.is_error) == ("blocked", True)
    assert "no-rm" in result.text()
    assert "deleting is not for agents" in result.text()
    assert [event.type for event in events] == ["tool_call_started", "hook_verdict", "tool_call_finished"]
    assert events.of("hook_verdict")[0]["verdict"] == "deny"


async def test_ask_without_an_approver_is_a_block() -> None:
    policy = PolicyThat(lambda s: s.ask("policy", "ask-rm", "a person must look"))
    (execution,) = await run([call("rm")], [tool("rm", never)], policy)
    assert execution.blocked
    assert "no approver" in result_of(execution).text()


async def test_a_silent_policy_blocks_and_no_policy_at_all_lets_pass() -> None:
    (silent,) = await run([call("t")], [tool("t", never)], PolicyThat(lambda s: s))
    (free,) = await run([call("t")], [tool("t", done)])
    assert silent.blocked
    assert result_of(free).content == b"done"


async def test_an_unknown_tool_is_judged_and_reported_and_never_executes() -> None:
    policy = allowing()
    (execution,) = await run([call("nope")], [tool("t", done)], policy)
    assert policy.seen == [{}]
    assert execution.verdict is not None
    assert execution.verdict.kind is VerdictKind.PROCEED
    assert "unknown tool 'nope'; the tools are t" in result_of(execution).text()


async def test_arguments_that_are_no_json_object_show_what_was_sent() -> None:
    broken = ToolCall(id="c1", name="t", arguments=None, raw_arguments='{"a": ')
    (execution,) = await run([broken], [tool("t", never)], allowing())
    assert 'not a JSON object: {"a": ' in result_of(execution).text()


async def test_policy_judges_the_absolute_path_that_the_tool_opens() -> None:
    policy, files = allowing(), FakeFiles({"/etc/passwd": b"root"})

    class Rewrites(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            return state.with_arguments({"path": "a/../../etc/./passwd"})

    (execution,) = await run([call("read_file", path="x")], filesystem(files).tools, policy, Rewrites())
    assert policy.seen == [{"path": "/etc/passwd"}]
    assert execution.call.arguments == {"path": "/etc/passwd"}
    assert result_of(execution).content == b"root"


@pytest.mark.parametrize("path", ["a/../../etc/./passwd", b"/etc/passwd"])
async def test_a_path_that_a_hook_rewrote_is_brought_into_its_final_form_and_checked(path: str | bytes) -> None:
    policy = allowing()

    class Rewrites(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            return state.with_arguments({"path": path})  # type: ignore[dict-item]

    files = FakeFiles({"/etc/passwd": b"root"})
    (execution,) = await run([call("read_file", path="x")], filesystem(files).tools, policy, Rewrites())
    if isinstance(path, str):
        assert policy.seen == [{"path": "/etc/passwd"}]
        assert result_of(execution).content == b"root"
    else:
        assert "`path`: must be a string" in result_of(execution).text()


@pytest.mark.parametrize("on_failure", ["open", "closed"])
async def test_arguments_cannot_be_changed_in_place(on_failure: OnFailure) -> None:
    class ChangesTheDict(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            assert state.current.tool.call.arguments is not None
            state.current.tool.call.arguments["deep"][0]["path"] = "/etc/passwd"  # type: ignore[index, call-overload]
            return state

    async def echo(asked: Any, context: ToolContext) -> ToolResult:
        return ToolResult(str(asked.model_dump()).encode())

    policy, hook = allowing(), ChangesTheDict()
    hook.on_failure = on_failure
    asked = call("t", deep=[{"path": "x"}])
    (execution,) = await run([asked], [tool("t", echo)], policy, hook)
    assert execution.blocked is (on_failure == "closed")
    if on_failure == "open":
        assert result_of(execution).content == b"{'deep': [{'path': 'x'}]}"
    assert asked.arguments == {"deep": [{"path": "x"}]}


async def test_a_directory_that_was_not_named_is_judged_as_the_workspace() -> None:
    policy = allowing()
    await run([call("ls")], filesystem(FakeFiles()).tools, policy)
    assert policy.seen == [{"path": "/workspace"}]


class SwapsArguments(Hook):
    """A ring that calls the tool with other arguments than were judged."""

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        return await next_(tool.with_(call=tool.call.with_(arguments={"command": "evil"})))


class MutatesArguments(Hook):
    """A ring that changes the judged dictionary in place."""

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        assert tool.call.arguments is not None
        tool.call.arguments["command"] = "evil"
        return await next_(tool)


@pytest.mark.parametrize(
    "ring, said",
    [
        (SwapsArguments(), "changed its arguments after they were judged"),
        (MutatesArguments(), "belongs to an immutable state"),
    ],
)
async def test_a_ring_that_changes_the_judged_arguments_is_refused(ring: Hook, said: str) -> None:
    (execution,) = await run([call("t", command="good")], [tool("t", never)], ring, allowing())
    assert said in result_of(execution).text()


async def test_rings_wrap_from_highest_priority_inwards() -> None:
    class Marks(Hook):
        def __init__(self, mark: bytes, priority: int) -> None:
            self.mark, self.priority = mark, priority

        async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
            result = await next_(tool)
            return replace(result, content=self.mark + result.content + self.mark)

    (execution,) = await run([call("t")], [tool("t", done)], Marks(b"i", 0), Marks(b"o", 5))
    assert result_of(execution).content == b"oidoneio"


class RaisingRing(Hook):
    def __init__(self, on_failure: Any) -> None:
        self.on_failure = on_failure

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        await next_(tool)
        raise RuntimeError("after the tool ran")


async def test_a_closed_ring_that_fails_withholds_the_result_and_an_open_one_runs_the_tool_once() -> None:
    runs: list[int] = []

    async def count(*_: object) -> ToolResult:
        runs.append(1)
        return ToolResult(b"secret")

    (closed,) = await run([call("t")], [tool("t", count)], RaisingRing("closed"))
    (opened,) = await run([call("t")], [tool("t", count)], RaisingRing("open"))
    assert "withheld" in result_of(closed).text()
    assert result_of(opened).content == b"secret"
    assert len(runs) == 2


class After(Hook):
    """Sees results; keeps the order of the calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def after_tool_use(self, state: AgentState) -> AgentState:
        current = state.current.tool
        assert current.result is not None
        self.seen.append((current.call.id, current.result.outcome))
        return state.with_metadata(current.call.id, current.result.outcome)


async def test_after_hooks_see_blocked_calls_too_and_their_state_survives() -> None:
    after = After()
    policy = PolicyThat(
        lambda s: s.block("policy", "r", "no") if s.current.tool.call.id == "c2" else s.proceed("policy", "r", "yes")
    )
    runner = ToolRunner(HookEngine([after, policy]), Toolbox([tool("t", done)]), Events())
    final = await runner.run(state(), [call("t", "c1"), call("t", "c2"), call("t", "c3")])
    assert after.seen == [("c1", "completed"), ("c2", "blocked"), ("c3", "completed")]
    assert final.metadata == {"c1": "completed", "c2": "blocked", "c3": "completed"}
    assert final.tool_calls == 3


@pytest.mark.parametrize("concurrency", [1, 2, 8])
async def test_results_and_state_are_the_same_at_any_concurrency(concurrency: int) -> None:
    at_once, most = 0, 0

    async def later_is_faster(asked: Any, context: ToolContext) -> ToolResult:
        nonlocal at_once, most
        at_once, most = at_once + 1, max(most, at_once + 1)
        for _ in range(10 - asked.n):
            await asyncio.sleep(0)
        at_once -= 1
        return ToolResult(str(asked.n).encode())

    after = After()
    calls = [call("t", f"c{n}", n=n) for n in range(8)]
    executions = await run(calls, [tool("t", later_is_faster)], after, allowing(), concurrency=concurrency)
    assert [result_of(execution).content for execution in executions] == [str(n).encode() for n in range(8)]
    assert [id_ for id_, _ in after.seen] == [f"c{n}" for n in range(8)]
    assert most == concurrency


class EarlierIsSlower(Hook):
    """A ring that holds earlier calls up for longer."""

    async def around_tool_use(self, tool: ToolExecution, next_: NextToolUse) -> ToolResult:
        for _ in range(50 - 10 * int(tool.call.id[1:])):
            await asyncio.sleep(0)
        return await next_(tool)


async def test_calls_of_one_step_that_write_the_same_path_run_in_call_order() -> None:
    files = FakeFiles({"/workspace/a": b"1"})
    calls = [
        call("edit_file", "c1", path="a", old_text="1", new_text="2"),
        call("edit_file", "c2", path="/workspace/./a", old_text="2", new_text="3"),
        call("read_file", "c3", path="a"),
        call("write_file", "c4", path="a", content="4"),
    ]
    executions = await run(calls, filesystem(files).tools, EarlierIsSlower(), allowing())
    assert [result_of(execution).is_error for execution in executions] == [False] * 4
    assert result_of(executions[2]).content == b"3"
    assert files.files["/workspace/a"] == b"4"


async def test_a_command_and_the_writers_of_its_step_run_in_call_order() -> None:
    order: list[str] = []

    async def runs(_asked: Any, context: ToolContext) -> ToolResult:
        order.append(f"{context.call_id} begins")
        await asyncio.sleep(0)
        order.append(f"{context.call_id} ends")
        return ToolResult(b"done")

    write = replace(tool("write", runs), writes=True)
    execute = replace(tool("execute", runs), writes_anywhere=True)
    calls = [call("write", "c1", path="a"), call("execute", "c2"), call("execute", "c3"), call("write", "c4", path="b")]
    await run(calls, [write, execute], EarlierIsSlower(), allowing())
    assert order[:2] == ["c1 begins", "c1 ends"]
    assert {moment[:2] for moment in order[2:6]} == {"c2", "c3"}
    assert order[-2:] == ["c4 begins", "c4 ends"]


async def test_the_verdict_shows_the_arguments_that_hooks_rewrote() -> None:
    class Shortens(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            if state.current.tool.call.id == "c1":
                return state.with_arguments({"n": 1})
            return state

    events = Events()
    await run([call("t", "c1", n=9), call("t", "c2", n=9)], [tool("t", done)], Shortens(), allowing(), events=events)
    assert [payload["arguments"] for payload in events.of("hook_verdict")] == [{"n": 1}, None]


async def test_cancelling_reaches_every_call_in_flight_waits_for_it_and_is_seen_by_after_hooks() -> None:
    events, after, ended = Events(), After(), []
    started = asyncio.Semaphore(0)

    async def hang(asked: Any, context: ToolContext) -> ToolResult:
        started.release()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(context.call_id)
        raise AssertionError

    task = asyncio.ensure_future(run([call("t", "c1"), call("t", "c2")], [tool("t", hang)], after, events=events))
    await started.acquire()
    await started.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["c1", "c2"]
    assert after.seen == [("c1", "cancelled"), ("c2", "cancelled")]
    assert [payload["outcome"] for payload in events.of("tool_call_finished")] == ["cancelled", "cancelled"]


async def test_a_sink_that_raises_does_not_break_the_call() -> None:
    def broken(event: object) -> None:
        raise RuntimeError("no room")

    (execution,) = await run([call("t")], [tool("t", done)], events=broken)
    assert result_of(execution).content == b"done"


async def test_output_becomes_events_in_order_of_arrival_with_whole_characters() -> None:
    events = Events()

    async def prints(asked: Any, context: ToolContext) -> ToolResult:
        assert context.on_output is not None
        data = "é".encode()
        context.on_output("stdout", b"a" + data[:1])
        context.on_output("stdout", data[1:])
        context.on_output("stderr", b"oops")
        return ToolResult(b"")

    await run([call("t")], [tool("t", prints)], events=events)
    assert [(p["stream"], p["text"]) for p in events.of("tool_output")] == [("stdout", "aé"), ("stderr", "oops")]


@pytest.mark.parametrize("listening", ["nobody", "a service", "the events"])
async def test_a_tool_shows_its_output_live_only_to_a_listener(listening: str) -> None:
    asked: list[bool] = []

    async def runs(_: object, context: ToolContext) -> ToolResult:
        asked.append(context.on_output is not None)
        return ToolResult(b"done")

    runner = ToolRunner(
        HookEngine(),
        Toolbox([tool("t", runs)]),
        Events() if listening == "the events" else discard,
        on_output=(lambda _stream, _data: None) if listening == "a service" else None,
    )
    (execution,) = (await runner.run(state(), [call("t")])).current.tool_executions
    assert result_of(execution).content == b"done"
    assert asked == [listening != "nobody"]


async def test_a_block_written_after_the_call_withholds_its_result() -> None:
    class Late(Hook):
        async def after_tool_use(self, state: AgentState) -> AgentState:
            return state.block("late", "leak", "it holds a key")

    (execution,) = await run([call("t")], [tool("t", done)], Late(), allowing())
    assert "it holds a key" in result_of(execution).text()
    assert b"done" not in result_of(execution).content
    assert not execution.blocked


async def test_a_step_that_is_resumed_has_contexts_of_its_own() -> None:
    mark = Slot[str]("mark")

    class Marks(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            assert state.current.tool.context.get(mark) is None
            state.current.tool.context.set(mark, state.current.tool.call.id)
            return state

    runner = ToolRunner(HookEngine([Marks()]), Toolbox([tool("t", done)]), discard)
    calls = [call("t", "c1"), call("t", "c2")]
    for _ in range(2):
        final = await runner.run(state(), calls)
        assert [one.context.get(mark) for one in final.current.tool_executions] == ["c1", "c2"]
