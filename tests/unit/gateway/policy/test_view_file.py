"""view_file has no rules of its own: to show a file is to read it."""

from __future__ import annotations

import pytest

from gateway.policy import STARTER_POLICY, load_policy
from gateway.policy.judge import compile_grants
from gateway.policy.loading import PolicyError
from gateway.policy.narrow import narrow_rule

POLICY = load_policy(
    """\
version: 1
rules:
- {id: files, tools: [read_file], paths: [/workspace/**], effect: allow, reason: r}
- {id: secrets, tools: [read], paths: [/workspace/secrets/**], effect: deny, reason: not for agents}
- {id: plans, tools: [read_file], paths: [/workspace/plans/**], effect: ask, reason: somebody looks}
""",
    "test",
)


@pytest.mark.parametrize(
    "path, verdict, rule",
    [
        ("/workspace/a.png", "allow", "files"),
        ("/workspace/secrets/a.png", "deny", "secrets"),
        ("/workspace/plans/a.png", "ask", "plans"),
        ("/etc/a.png", "deny", "default-deny"),
        ("/workspace/../etc/a.png", "deny", "invalid-arguments"),
    ],
)
def test_it_is_judged_by_the_rules_about_read_file(path: str, verdict: str, rule: str) -> None:
    viewed, read = (POLICY.judge(tool, {"path": path}) for tool in ("view_file", "read_file"))
    assert (viewed.verdict, viewed.rule) == (verdict, rule)
    assert (viewed.verdict, viewed.rule, viewed.trace) == (read.verdict, read.rule, read.trace)


def test_a_call_without_a_path_is_not_judged() -> None:
    assert POLICY.judge("view_file", {}).rule == "invalid-arguments"


def test_the_starter_policy_lets_files_of_the_workspace_be_viewed() -> None:
    starter = load_policy(STARTER_POLICY, "starter")
    assert starter.judge("view_file", {"path": "/workspace/a.png"}).rule == "files"
    assert starter.judge("view_file", {"path": "/etc/a.png"}).verdict == "deny"


def test_no_rule_can_name_it() -> None:
    with pytest.raises(PolicyError, match="view_file"):
        load_policy("version: 1\nrules:\n- {id: a, tools: [view_file], effect: allow, reason: r}\n", "test")


def test_what_an_approver_allows_is_to_read_this_file() -> None:
    arguments = {"path": "/workspace/plans/a.png"}
    rule = narrow_rule("view_file", arguments, POLICY.judge("view_file", arguments))
    assert rule is not None
    assert (rule.tools, rule.paths) == (("read_file",), ("/workspace/plans/a.png",))
    granted = compile_grants([rule])
    assert POLICY.judge("view_file", arguments, None, granted).verdict == "allow"
    assert POLICY.judge("view_file", {"path": "/workspace/plans/b.png"}, None, granted).verdict == "ask"
