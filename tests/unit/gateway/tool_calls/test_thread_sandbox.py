"""What a command is enforced by: the policy in force when it starts, or the version that judged it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent.tool_call import CallContext
from gateway.policy import Policy, load_policy
from gateway.tool_calls.policy_hook import JUDGED_BY
from gateway.tool_calls.program_check import ProgramCheck
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.file_rules import FileRules
from sandbox.protocols import ExecResult, ProgramResult
from sandbox.sandbox import SandboxSpec

RULES = """
rules:
  - {id: look, tools: [read], paths: [/workspace/**], effect: allow, reason: r}
  - {id: run, tools: [execute], argv: [[git], [no-such-program]], effect: allow, reason: r}
"""
KERNEL = load_policy(f"version: 1\nenforcement: kernel\n{RULES}", "kernel")
WIDER = load_policy(f"version: 1\nenforcement: kernel\n{RULES}".replace("/workspace/**", "/tmp/**"), "wider")
READING = load_policy(f"version: 1\n{RULES}", "reading")
SIZES: dict[str, Any] = {"timeout_s": 1, "call_id": "c", "limit_chars": 1000, "head_chars": 10, "tail_chars": 10}


class FakeSandbox:
    """A sandbox that notes under which file rules something runs; its image has git alone."""

    spec = SandboxSpec("acme", "t", "an-image")

    def __init__(self, landlock_version: int = 7) -> None:
        self.posture = SimpleNamespace(landlock_version=landlock_version)
        self.rules: list[FileRules | None] = []
        self.checks = 0

    @property
    def shell(self) -> Any:
        return FakeShell(self, None)

    def take_ended_processes(self) -> int:
        return 0


class FakeShell:
    def __init__(self, sandbox: FakeSandbox, rules: FileRules | None) -> None:
        self.sandbox, self.rules = sandbox, rules

    def under(self, rules: FileRules | None, env: object = None) -> FakeShell:
        return FakeShell(self.sandbox, rules)

    async def execute(self, command: str, **_: Any) -> ExecResult:
        self.sandbox.rules.append(self.rules)
        return ExecResult(outcome="exited", exit_code=0)

    async def run_program(self, program: Any, *, stdin: None, on_output: Any) -> ProgramResult:
        self.sandbox.checks += 1
        await on_output("stdout", b"\n".join(name for name in program.argv[4:] if name != b"git"))
        return ProgramResult("exited", exit_code=0)


class FakeLeases:
    def __init__(self, sandbox: FakeSandbox) -> None:
        self.sandbox = sandbox

    @asynccontextmanager
    async def acquire(self, _: SandboxSpec) -> AsyncIterator[FakeSandbox]:
        yield self.sandbox


async def run(sandbox: FakeSandbox, in_force: Policy, judged_by: Policy | None) -> ExecResult:
    context = CallContext()
    if judged_by is not None:
        context.set(JUDGED_BY, judged_by)
    leases: Any = FakeLeases(sandbox)
    thread = ThreadSandbox(leases, sandbox.spec, lambda: in_force, None, ProgramCheck())
    return await thread.execute("git status", context=context, **SIZES)


@pytest.mark.parametrize(
    "in_force, judged_by, rules",
    [
        (KERNEL, KERNEL, KERNEL.file_rules),
        (READING, KERNEL, KERNEL.file_rules),
        (KERNEL, READING, KERNEL.file_rules),
        (WIDER, KERNEL, WIDER.file_rules),
        (READING, READING, None),
        (READING, None, None),
    ],
)
async def test_what_starts_is_under_the_rules_in_force_or_else_of_the_version_that_judged_it(
    in_force: Policy, judged_by: Policy | None, rules: FileRules | None
) -> None:
    sandbox = FakeSandbox()
    assert (await run(sandbox, in_force, judged_by)).outcome == "exited"
    assert sandbox.rules == [rules]


async def test_without_landlock_nothing_starts_and_the_result_says_why() -> None:
    sandbox = FakeSandbox(landlock_version=2)
    done = await run(sandbox, KERNEL, KERNEL)
    assert done.outcome == "failed_to_start"
    assert "Landlock" in done.message
    assert "enforcement: reading" in done.message
    assert sandbox.rules == []
    assert (await run(sandbox, READING, READING)).outcome == "exited"


async def test_a_program_that_the_image_does_not_have_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sandbox, check = FakeSandbox(), ProgramCheck()
    leases: Any = FakeLeases(sandbox)
    thread = ThreadSandbox(leases, sandbox.spec, lambda: KERNEL, None, check)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await thread.execute("git status", **SIZES)
    assert sandbox.checks == 1
    (record,) = caplog.records
    assert "image an-image does not have no-such-program" in record.getMessage()
