"""The execute tool."""

from __future__ import annotations

import json

import pytest

from agent.capabilities.bash import CommandPolicy, Network, bash
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook
from agent.messages import ToolCall, ToolResult
from agent.state import AgentState, ToolExecution
from agent.tools.runner import ToolRunner
from agent.tools.toolbox import Toolbox
from tests.unit.agent.fakes import (
    Events,
    FakeExec,
    FakePiece,
    FakeShell,
    FakeSpill,
    PolicyThat,
    allowing,
    call,
    done,
    ran,
    state,
    tool,
)


async def use(done: FakeExec) -> ToolResult:
    return await ran(Toolbox(bash(FakeShell(done)).tools), call("execute", command="x"))


async def test_output_is_raw_in_order_of_arrival_and_apart() -> None:
    pieces = [FakePiece("stdout", b"a\xff"), FakePiece("stderr", b"b\0"), FakePiece("stdout", b"c")]
    result = await use(FakeExec(output=pieces, output_bytes=5))
    assert (result.content, result.stdout, result.stderr) == (b"a\xffb\0c", b"a\xffc", b"b\0")
    assert (result.is_error, result.exit_code, result.note) == (False, 0, "")


@pytest.mark.parametrize(
    "done, note",
    [
        (FakeExec(exit_code=1), "[exit code 1]"),
        (FakeExec(exit_code=2, message="a process was refused"), "[exit code 2: a process was refused]"),
        (FakeExec("timed_out", None), "timed out after 120 s"),
        (FakeExec("signalled", None, 11), "signal 11"),
        (FakeExec("out_of_memory", None), "memory limit"),
        (FakeExec("pids_limit", None), "limit of processes"),
        (FakeExec("failed_to_start", None, message="no such file"), "did not start: no such file"),
        (FakeExec("daemon_lost", None), "sandbox was lost"),
        (FakeExec("cancelled", None), "cancelled"),
    ],
)
async def test_every_end_but_success_is_an_error_and_is_said(done: FakeExec, note: str) -> None:
    result = await use(done)
    assert result.is_error
    assert result.outcome == done.outcome
    assert note in result.note
    assert result.content == b""


async def test_an_evicted_result_shows_head_and_tail_and_how_to_read_the_rest() -> None:
    spill = FakeSpill("/workspace/.airlock/output/c1.txt", 100_000, 5000)
    done = FakeExec(
        output=[FakePiece("stdout", b"HEAD")], tail=[FakePiece("stderr", b"TAIL")], evicted=spill, output_bytes=100_000
    )
    result = await use(done)
    assert result.content.startswith(b"HEAD\n[... 99992 bytes left out here.")
    assert result.content.endswith(b"]\nTAIL")
    assert result.content.count(b"\n") == 2
    for said in (b"/workspace/.airlock/output/c1.txt", b"100000 bytes", b"5000 lines", b"grep", b"read_file"):
        assert said in result.content
    assert result.evicted is not None
    assert result.evicted.path == spill.path
    assert (result.stdout, result.stderr) == (b"HEAD", b"TAIL")


@pytest.mark.parametrize(
    "arguments",
    [{"command": ""}, {"command": "a\0"}, {"command": "x", "timeout_s": 0}, {"command": "x", "timeout_s": 9999}],
)
def test_unfit_arguments_are_refused(arguments: dict[str, object]) -> None:
    assert Toolbox(bash(FakeShell()).tools).prepare(call("execute", **arguments)).unfit is not None  # type: ignore[arg-type]


async def test_timeout_call_id_and_eviction_limit_reach_the_shell() -> None:
    shell = FakeShell()
    await ran(Toolbox(bash(shell, timeout_s=7).tools), call("execute", "c9", command="x"))
    assert shell.settings == [{"timeout_s": 7, "call_id": "c9", "limit_chars": 80_000}]


def no_rm(command: str) -> str | None:
    return "rm is not for agents" if "rm" in command else None


async def judged(
    policy: CommandPolicy, asked: ToolCall, *hooks: Hook, shell: FakeShell | None = None, events: Events | None = None
) -> ToolExecution:
    """Send a call through a bash capability with a command policy, and a tool of a longer name beside it."""
    capability = bash(shell or FakeShell(), command_policy=policy)
    tools = Toolbox([*capability.tools, tool("execute_all", done)])
    runner = ToolRunner(HookEngine([*hooks, *capability.hooks]), tools, Events() if events is None else events)
    return (await runner.run(state(), [asked])).current.tool_executions[0]


async def test_a_command_that_the_command_policy_refuses_never_reaches_the_shell() -> None:
    shell = FakeShell()
    refused = await judged(no_rm, call("execute", command="rm x"), allowing(), shell=shell)
    assert refused.verdict is not None
    assert (refused.blocked, refused.verdict.rule) == (True, "command_policy")
    assert refused.result is not None
    assert "rm is not for agents" in refused.result.text()
    assert shell.commands == []
    passed = await judged(no_rm, call("execute", command="ls"), allowing(), shell=shell)
    assert not passed.blocked
    assert shell.commands == ["ls"]


async def test_what_the_command_policy_lets_pass_the_agents_policy_may_still_block() -> None:
    no = PolicyThat(lambda s: s.block("policy", "no", "nothing at all"))
    refused = await judged(no_rm, call("execute", command="ls"), no)
    assert refused.verdict is not None
    assert refused.verdict.rule == "no"


async def test_the_command_policy_is_about_execute_and_no_tool_of_a_longer_name() -> None:
    passed = await judged(no_rm, call("execute_all", command="rm x"))
    assert not passed.blocked


async def test_a_command_policy_that_raises_blocks_and_is_an_event() -> None:
    def broken(command: str) -> str | None:
        raise RuntimeError("no rules to be found")

    shell, events = FakeShell(), Events()
    refused = await judged(broken, call("execute", command="ls"), allowing(), shell=shell, events=events)
    assert refused.verdict is not None
    assert (refused.blocked, refused.verdict.rule) == (True, "hook_failed")
    assert shell.commands == []
    assert [(event["hook"], event["on_failure"]) for event in events.of("hook_failed")] == [("bash", "closed")]


async def test_a_refusal_without_a_reason_is_a_refusal() -> None:
    refused = await judged(lambda _: "", call("execute", command="ls"))
    assert refused.blocked
    assert refused.verdict is not None
    assert refused.verdict.reason


@pytest.mark.parametrize("arguments", [{}, {"command": None}, {"command": 5}, {"command": ["ls"]}])
async def test_a_command_that_is_no_text_is_blocked_with_what_is_wrong(arguments: dict[str, object]) -> None:
    refused = await judged(lambda _: None, ToolCall(id="c1", name="execute", arguments=arguments))  # type: ignore[arg-type]
    assert refused.blocked
    assert refused.result is not None
    assert "the arguments of execute do not fit" in refused.result.text()


@pytest.mark.parametrize("priority", [10, 0, -10])
async def test_the_command_policy_judges_what_other_hooks_made_of_the_command(priority: int) -> None:
    class Rewrites(Hook):
        async def before_tool_use(self, state: AgentState) -> AgentState:
            return state.with_arguments({"command": "rm x"})

    rewrites, shell = Rewrites(), FakeShell()
    rewrites.priority = priority
    refused = await judged(no_rm, call("execute", command="ls"), rewrites, shell=shell)
    assert refused.blocked
    assert shell.commands == []


def test_the_command_policy_is_mandatory_so_that_subagents_have_it_and_absent_where_none_is_given() -> None:
    (hook,) = bash(FakeShell(), command_policy=no_rm).hooks
    assert hook.mandatory
    assert bash(FakeShell()).hooks == ()


def test_the_model_reads_the_time_limit_as_it_was_configured() -> None:
    def default(timeout_s: float) -> str:
        (spec,) = Toolbox(bash(FakeShell(), timeout_s=timeout_s).tools).specs()
        return json.dumps(spec.parameters["properties"]["timeout_s"]["default"])  # type: ignore[call-overload, index]

    assert [default(120), default(120.0), default(60)] == ["120", "120.0", "60"]


def test_the_model_reads_which_network_there_is() -> None:
    def said(network: Network | None) -> str:
        return bash(FakeShell(), network=network).tools[0].description

    assert "There is no network" in said("none")
    assert "HTTPS_PROXY" in said("proxy")
    assert "no network" not in said("proxy")
    assert "network" not in said(None)
