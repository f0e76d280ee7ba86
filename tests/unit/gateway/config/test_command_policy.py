"""The command policy of one agent: every command of a line, wrappers taken off, and nothing that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent.capabilities.bash import CommandPolicy, bash
from agent.hooks.engine import HookEngine
from agent.tools.runner import ToolRunner
from agent.tools.toolbox import Toolbox
from gateway.config.command_policy import CommandRules, command_policy
from tests.security.policy.attempts import ATTEMPTS
from tests.security.policy.strict_policy import verdict
from tests.unit.agent.fakes import Events, FakeShell, call, state


def judge(**rules: Any) -> CommandPolicy:
    policy = command_policy(CommandRules(**rules))
    assert policy is not None
    return policy


LOOKING = judge(
    allow=[["ls"], ["cat"], ["wc"], ["echo"], ["git", ["status", "diff", "log"]], ["python3", "-m", "pytest"]],
    deny=[["git", "log", "-p"]],
)
NOT_RM = judge(deny=[["rm"], ["git", "push"]])


@pytest.mark.parametrize(
    "command",
    [
        "ls -la",
        "ls | wc -l",
        "ls && git status; cat a || echo none",
        "git log --oneline | cat",
        "timeout 60 python3 -m pytest -q 2>&1",
        "env ls",
        "sh -c 'ls; cat a'",
        "cat < a.txt 2>/dev/null",
        "ls *.py",
        "'ls' x",
        "ls & cat a",
        "timeout -k 1 5 ls",
        "cat /etc/passwd $HOME/.ssh/id",
    ],
)
def test_lines_of_allowed_commands_pass(command: str) -> None:
    assert LOOKING(command) is None


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "ls; rm x",
        "ls && rm x",
        "ls | xargs rm",
        "ls\nrm x",
        "ls | head -30\nrm x",
        "ls | wc -l\nrm x",
        "ls $(rm x)",
        "ls `rm x`",
        "env rm x",
        "env -S 'rm x'",
        "PATH=/workspace ls",
        "timeout 5 rm x",
        "timeout -k 1 5 rm x",
        "sh -c 'ls; rm x'",
        "sh -c 'sh -c \"rm x\"'",
        "eval ls",
        "find . -exec rm {} +",
        "busybox rm x",
        "/workspace/ls",
        "git push",
        "git log -p",
        "git *",
        "python3 -c pass",
        "",
        "# nothing",
        "ls \0; rm x",
        "\udcff",
    ],
)
def test_a_line_with_anything_else_in_it_is_refused(command: str) -> None:
    assert LOOKING(command)


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "/bin/rm x",
        "ls; rm x",
        "ls | xargs rm",
        "ls | head -30\nrm x",
        "timeout 5 rm x",
        "nice rm x",
        "env rm x",
        "sh -c 'rm x'",
        "find . -exec rm {} +",
        "git push origin",
        "git *",
        "$x",
        "r$@m x",
        "ls $(rm x)",
        "env -u A rm x",
        "if true; then rm x; fi",
    ],
)
def test_a_denied_command_is_refused_wherever_it_stands_and_so_is_what_may_hide_one(command: str) -> None:
    assert NOT_RM(command)


@pytest.mark.parametrize("command", ["make", "ls > out.txt", "git pull", "sh -c 'make test'", "echo rm", "rmdir x"])
def test_where_only_some_commands_are_denied_all_others_pass(command: str) -> None:
    assert NOT_RM(command) is None


@pytest.mark.parametrize("kind", sorted(ATTEMPTS))
def test_every_known_attempt_on_the_policy_fails_here_too(kind: str) -> None:
    strict = judge(
        allow=[
            *([name] for name in ("ls", "cat", "grep", "find", "wc", "head", "tail", "echo", "sort", "pwd", "cd")),
            ["git", ["status", "diff", "log"]],
            ["python3", "-m", "pytest"],
        ],
        deny=[["git", "log", "-p"], ["git", "diff", "--ext-diff"]],
    )
    # What an allowed program reads is for the tenant's policy to judge, by path: so both together.
    assert [command for command in ATTEMPTS[kind] if strict(command) is None and verdict(command) == "allow"] == []


@pytest.mark.parametrize("command", ["echo x > f", "echo x >> /tmp/f", "> f", "ls 2> f", "sh -c 'echo x > f'"])
def test_where_only_some_commands_are_allowed_none_writes_a_file_by_a_redirect(command: str) -> None:
    reason = LOOKING(command)
    assert reason is not None
    assert "by a redirect (> /" in reason


def test_a_reason_names_the_command_and_what_would_be_allowed() -> None:
    assert LOOKING("ls; rm x") == (
        "this agent may not run 'rm x'; "
        "it may run commands that start with: ls, cat, wc, echo, git status|diff|log, python3 -m pytest"
    )
    assert NOT_RM("ls && git push") == "this agent may not run 'git push'"
    assert "opaque" in (NOT_RM("$x") or "")


def test_a_reason_stays_short_for_long_lines_and_long_lists() -> None:
    many = judge(allow=[[f"program-{number}"] for number in range(1000)])
    assert len(many("rm " + "x" * 20_000) or "") < 1000


def test_no_rules_are_no_policy() -> None:
    assert command_policy(CommandRules()) is None


def test_a_star_is_one_word_of_any_text() -> None:
    policy = judge(allow=[["git", "*", "origin"]])
    assert policy("git push origin") is None
    assert policy("git origin") is not None


def test_rules_are_the_same_from_json_and_from_yaml() -> None:
    rules = CommandRules(allow=[["git", ["status", "log"]]], deny=(("rm",),))  # type: ignore[arg-type,list-item]
    assert CommandRules.model_validate_json(rules.model_dump_json()) == rules
    assert CommandRules.model_validate(rules.model_dump()) == rules


@pytest.mark.parametrize(
    "rules, field, message",
    [
        ({"allow": []}, "allow", "write lists of words"),
        ({"allow": None}, "allow", "write lists of words"),
        ({"deny": ["git"]}, "deny", "write lists of words"),
        ({"deny": "git"}, "deny", "write lists of words"),
        ({"allow": [["git", 1]]}, "allow", "need quotes"),
        ({"allow": [["git", False]]}, "allow", "need quotes"),
        ({"allow": [["git", ""]]}, "allow", "write lists of words"),
        ({"allow": [["git", []]]}, "allow", "write lists of words"),
        ({"allow": [[]]}, "allow", "write lists of words"),
        ({"allow": [["git status"]]}, "allow", "write the words apart: [git, status]"),
        ({"deny": [[["git", "rm -rf"]]]}, "deny", "'rm -rf' is not one word"),
        ({"alow": [["git"]]}, "alow", "not permitted"),
    ],
)
def test_rules_in_another_form_are_refused_with_the_right_one(rules: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CommandRules(**rules)
    (problem,) = caught.value.errors()
    assert problem["loc"][0] == field
    assert message in problem["msg"]


async def test_as_a_capabilitys_policy_it_blocks_and_lets_pass() -> None:
    shell = FakeShell()
    capability = bash(shell, command_policy=LOOKING)
    runner = ToolRunner(HookEngine(capability.hooks), Toolbox(capability.tools), Events())
    calls = [call("execute", "c1", command="ls"), call("execute", "c2", command="ls; rm x")]
    executions = (await runner.run(state(), calls)).current.tool_executions
    assert [execution.blocked for execution in executions] == [False, True]
    assert shell.commands == ["ls"]
