"""Changes from one policy to another: counts, samples, texts; and what a tenant ends up with."""

from __future__ import annotations

from gateway.policy.judge import Policy
from gateway.policy.loading import read_policy
from gateway.policy.resolved import Setting, resolve
from gateway.policy_versions.difference import LIMIT_SAMPLES, Tally, Verdict, text_changes

ALLOW, ASK, DENY = Verdict("allow", "a"), Verdict("ask", "b"), Verdict("deny", "c")
RULE = "{id: %s, tools: [ls], effect: allow, reason: r}"


def test_only_another_verdict_is_a_change() -> None:
    tally = Tally()
    tally.take(ALLOW, Verdict("allow", "other"), "x")
    tally.take(ALLOW, DENY, "x")
    assert (tally.calls, tally.changed) == (2, 1)


def test_changes_are_counted_by_their_rules_and_what_loosens_comes_first() -> None:
    tally = Tally()
    for place in range(10):
        tally.take(ALLOW, DENY, f"call {place}")
    tally.take(DENY, ASK, "loose")
    tally.take(ASK, ALLOW, "loose")
    assert [(change.loosens, change.calls) for change in tally.changes] == [(True, 1), (True, 1), (False, 10)]
    assert tally.changes[2].samples == ["call 0", "call 1", "call 2"][:LIMIT_SAMPLES]


def test_equal_samples_are_shown_once() -> None:
    tally = Tally()
    for _ in range(3):
        tally.take(ALLOW, DENY, "same")
    assert tally.changes[0].samples == ["same"]


def test_rules_and_settings_that_differ_are_named() -> None:
    a = f"version: 1\nlimits: {{steps: 5}}\nrules: [{RULE % 'a'}, {RULE % 'both'}]"
    b = f"version: 1\nlimits: {{steps: 6}}\nopaque: ask\nrules: [{RULE % 'both'}, {RULE % 'b'}]"
    changes = text_changes(read_policy(a, "a").document, read_policy(b, "b").document)
    assert {(change.name, change.before is None, change.after is None) for change in changes} == {
        ("limits.steps", False, False),
        ("opaque", False, False),
        ("rule a", False, True),
        ("rule b", True, False),
    }


def test_each_setting_has_who_said_it_and_each_rule_its_layer_and_group() -> None:
    tenant = read_policy(
        "version: 1\nlimits: {steps: 5, tool_calls: 9}\nuse: [g]\n"
        f"groups: {{g: {{rules: [{RULE % 'x'}]}}, unused: {{rules: [{RULE % 'y'}]}}}}",
        "tenant",
    ).document
    operator = read_policy(
        f"version: 1\nlimits: {{steps: 3, tool_calls: 20, run_s: 60.0}}\nrules: [{RULE % 'z'}]", "operator"
    ).document
    resolved = resolve(Policy(tenant, operator))
    assert [(placed.name, placed.layer, placed.group) for placed in resolved.rules] == [
        ("operator/z", "operator", None),
        ("x", "tenant", "g"),
    ]
    settings = {setting.name: setting for setting in resolved.settings}
    assert settings["limits.steps"] == Setting("limits.steps", 3, "operator")
    assert settings["limits.tool_calls"] == Setting("limits.tool_calls", 9, "tenant")
    assert settings["limits.run_s"] == Setting("limits.run_s", 60.0, "operator")
    assert settings["limits.output_tokens"].who == "default"
