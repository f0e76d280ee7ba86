"""Rules about the tools of MCP servers: by their whole name, or for all of a server's."""

from __future__ import annotations

import pytest

from gateway.policy import load_policy
from gateway.policy.loading import PolicyError

POLICY = """\
version: 1
rules:
  - {id: all, tools: [notes/*], effect: allow, reason: r}
  - {id: ask, tools: [notes/send], effect: ask, reason: r}
  - {id: drop, tools: [notes/drop], effect: deny, reason: r}
  - {id: one, tools: [tracker/list], effect: allow, reason: r, when: "args.project == 'a'"}
"""


@pytest.mark.parametrize(
    "tool, verdict, rule",
    [
        ("notes/read", "allow", "all"),
        ("notes/send", "ask", "ask"),
        ("notes/drop", "deny", "drop"),
        ("notes", "deny", "default-deny"),
        ("note/read", "deny", "default-deny"),
        ("notes2/read", "deny", "default-deny"),
        ("tracker/list", "allow", "one"),
        ("tracker/other", "deny", "default-deny"),
    ],
)
def test_the_strictest_rule_about_a_tool_or_its_server_wins(tool: str, verdict: str, rule: str) -> None:
    decision = load_policy(POLICY, "test").judge(tool, {"project": "a"})
    assert (decision.verdict, decision.rule) == (verdict, rule)


@pytest.mark.parametrize("tool", ["notes/", "/read", "*/read", "notes/re*", "Notes/read", "a__b/c", "notes/a b"])
def test_a_name_that_no_tool_of_a_server_has_does_not_load(tool: str) -> None:
    with pytest.raises(PolicyError, match="is not allowed"):
        load_policy(f"version: 1\nrules:\n- {{id: a, tools: ['{tool}'], effect: allow, reason: r}}\n", "test")


def test_a_rule_of_results_is_about_the_tools_of_a_server_too() -> None:
    text = "version: 1\nresults:\n- {id: a, tools: [notes/*], contains: secret, reason: r}\n"
    assert load_policy(text, "test").document.results[0].tools == ("notes/*",)
