"""The policy as a hook."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pydantic import JsonValue

from agent.messages import ToolCall
from agent.state import AgentState, CurrentExecution, ToolExecution, VerdictKind
from gateway.policy import STARTER_POLICY, Policy, load_policy
from gateway.policy.decision import Decision
from gateway.tool_calls.policy_hook import PolicyHook
from tests.unit.agent.fakes import execution_of

POLICY = load_policy(STARTER_POLICY, "starter")


def calling(requested: ToolCall, final: ToolCall | None = None) -> AgentState:
    """A state in which one tool call is about to be judged."""
    execution = execution_of(requested).with_(call=final or requested)
    current = CurrentExecution(tool_executions=(execution,), tool_index=0)
    return AgentState(run_id="r", thread="t").with_(current=current)


def call(path: str) -> ToolCall:
    return ToolCall(id="c", name="read_file", arguments={"path": path})


async def test_an_allowed_call_proceeds_in_the_name_of_its_rule() -> None:
    state = await PolicyHook(POLICY).before_tool_use(calling(call("/workspace/a")))
    verdict = state.current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.hook, verdict.rule) == (VerdictKind.PROCEED, "policy", "files")
    assert state.notes["policy.version"] == POLICY.version


async def test_a_denied_call_is_blocked_with_a_reason_for_the_model() -> None:
    state = await PolicyHook(POLICY).before_tool_use(calling(call("/etc/passwd")))
    verdict = state.current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rule) == (VerdictKind.BLOCK, "default-deny")
    assert "/etc/passwd" in verdict.reason


async def test_the_final_arguments_are_judged_not_the_requested_ones() -> None:
    state = await PolicyHook(POLICY).before_tool_use(calling(call("/workspace/a"), call("/etc/passwd")))
    assert state.current.tool.blocked
    state = await PolicyHook(POLICY).before_tool_use(calling(call("/etc/passwd"), call("/workspace/a")))
    assert not state.current.tool.blocked


async def test_a_block_of_an_outer_hook_stays() -> None:
    state = calling(call("/workspace/a")).block("quota", "calls", "too many")
    verdict = (await PolicyHook(POLICY).before_tool_use(state)).current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.hook) == (VerdictKind.BLOCK, "quota")


async def test_a_call_without_arguments_is_blocked() -> None:
    nonsense = ToolCall(id="c", name="execute", arguments=None, raw_arguments="{")
    state = await PolicyHook(POLICY).before_tool_use(calling(nonsense))
    assert state.current.tool.blocked


async def test_each_judged_call_is_taken_for_the_denied_and_the_unfit_too() -> None:
    taken: list[tuple[str, str]] = []

    async def take(decision: Decision, tool: ToolExecution) -> tuple[str, str] | None:
        taken.append((decision.verdict, tool.call.id))
        return ("quota", "all are used") if len(taken) == 5 else None

    hook = PolicyHook(POLICY, take_limits=take)
    await hook.before_tool_use(calling(call("/workspace/a")))
    await hook.before_tool_use(calling(call("/etc/passwd")))
    await hook.before_tool_use(calling(ToolCall(id="c", name="execute", arguments=None, raw_arguments="{")))
    blocked = calling(call("/workspace/a")).block("limits", "calls", "too many")
    await hook.before_tool_use(blocked)
    assert taken == [("allow", "c"), ("deny", "c"), ("deny", "c"), ("deny", "c")]
    state = await hook.before_tool_use(calling(call("/etc/passwd")))
    verdict = state.current.tool.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rule, verdict.reason) == (VerdictKind.BLOCK, "quota", "all are used")


def test_the_hook_is_mandatory_closed_and_innermost() -> None:
    hook = PolicyHook(POLICY)
    assert (hook.mandatory, hook.innermost, hook.on_failure) == (True, True, "closed")


async def test_a_long_command_line_and_large_arguments_are_judged_beside_the_event_loop() -> None:
    loops = threading.get_ident()
    judged_in: list[int] = []

    class Watched(Policy):
        def judge(self, *args: Any, **kwargs: Any) -> Decision:
            judged_in.append(threading.get_ident())
            return super().judge(*args, **kwargs)

    hook = PolicyHook(Watched(POLICY.document), work=asyncio.to_thread)
    calls: list[dict[str, JsonValue]] = [
        {"command": "echo x", "timeout_s": 5},
        {"command": "echo " + "x" * 1000},
        {"command": "echo x", "x": [[1] * 250] * 78},
    ]
    for arguments in calls:
        state = await hook.before_tool_use(calling(ToolCall(id="c", name="execute", arguments=arguments)))
        verdict = state.current.tool.verdict
        assert verdict is not None
        assert verdict.rule == "any-command"
    assert [thread == loops for thread in judged_in] == [True, False, False]
