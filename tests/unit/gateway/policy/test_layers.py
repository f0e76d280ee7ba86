"""The operator's layer and the tenant's together, and groups of rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.policy import Policy, PolicyDocument, PolicyError, load_document, load_policy


def document(**fields: Any) -> PolicyDocument:
    return PolicyDocument.model_validate_json(json.dumps({"version": 1, **fields}))


def rule(name: str, effect: str, *paths: str) -> dict[str, Any]:
    return {"id": name, "tools": ["read_file"], "effect": effect, "reason": name, "paths": list(paths)}


def read(policy: Policy, path: str) -> tuple[str, str]:
    decision = policy.judge("read_file", {"path": path})
    return decision.verdict, decision.rule


def test_the_strictest_rule_of_both_layers_wins_and_names_its_layer() -> None:
    tenant = document(rules=[rule("all", "allow", "/**"), rule("no-keys", "deny", "/workspace/keys/**")])
    operator = document(rules=[rule("etc", "deny", "/etc/**"), rule("all", "ask", "/workspace/x")])
    policy = Policy(tenant, operator)
    assert read(policy, "/etc/passwd") == ("deny", "operator/etc")
    assert read(policy, "/workspace/keys/a") == ("deny", "no-keys")
    assert read(policy, "/workspace/x") == ("ask", "operator/all")
    assert read(policy, "/workspace/y") == ("allow", "all")
    assert {match.layer for match in policy.judge("read_file", {"path": "/workspace/x"}).trace} == {
        "operator",
        "tenant",
    }


def test_an_allow_of_the_operator_is_an_allow_that_the_tenant_can_tighten() -> None:
    operator = document(rules=[rule("all", "allow", "/workspace/**")])
    assert read(Policy(document(), operator), "/workspace/a") == ("allow", "operator/all")
    assert read(Policy(document(rules=[rule("no", "deny", "/**")]), operator), "/workspace/a") == ("deny", "no")


def test_the_sections_that_hold_are_the_stricter_of_what_each_layer_writes() -> None:
    tenant = document(
        limits={"steps": 50, "run_s": 1000.0, "cost_usd": 5.0},
        sandbox={"memory_mib": 4096, "image": "mine"},
        eviction={
            "limit_chars": 50_000,
            "head_chars": 30_000,
            "tail_chars": 9000,
            "tools": {"execute": {"limit_chars": 90_000}},
        },
        quotas={"runs_at_once": 5},
        redaction={"well_known": False, "patterns": [{"id": "a", "pattern": "A+"}]},
        results=[{"id": "big", "reason": "r", "over_bytes": 5}],
        opaque="allow",
    )
    operator = document(
        limits={"steps": 10, "cost_usd": 9.0},
        sandbox={"image": "theirs", "pids": 100},
        eviction={"limit_chars": 4000},
        quotas={"runs_at_once": 9, "tokens_per_day": 100},
        redaction={"well_known": True, "patterns": [{"id": "b", "pattern": "B+"}]},
        results=[{"id": "big", "reason": "r", "over_bytes": 9}],
        opaque="ask",
    )
    held = Policy(tenant, operator).document
    assert (held.limits.steps, held.limits.run_s, held.limits.cost_usd, held.limits.tool_calls) == (
        10,
        1000.0,
        5.0,
        200,
    )
    assert (held.sandbox.memory_mib, held.sandbox.image, held.sandbox.pids) == (4096, "theirs", 100)
    assert (held.eviction.limit_chars, held.eviction.head_chars, held.eviction.tail_chars) == (4000, 2000, 2000)
    assert held.eviction.sizes("execute").limit_chars == 4000
    assert (held.quotas.runs_at_once, held.quotas.tokens_per_day, held.quotas.bytes_per_day) == (5, 100, None)
    assert held.redaction.well_known
    assert [pattern.id for pattern in held.redaction.patterns] == ["b", "a"]
    assert [result.id for result in held.results] == ["operator/big", "big"]
    assert held.opaque == "ask"


def test_of_the_limits_of_connections_the_stricter_hold_and_each_has_a_default() -> None:
    tenant = document(network={"connections": 50, "waiting": 0, "bytes_up": 1000, "idle_s": 60.0})
    operator = document(network={"connections": 200, "waiting": 4, "bytes_down": 5000, "total_s": 600.0})
    held = Policy(tenant, operator).document.network
    assert held.model_dump() == {
        "connections": 50,
        "tenant_connections": 1000,
        "connections_per_minute": 600,
        "waiting": 0,
        "wait_s": 300.0,
        "connect_s": 10.0,
        "idle_s": 60.0,
        "total_s": 600.0,
        "bytes_up": 1000,
        "bytes_down": 5000,
    }
    alone = Policy(document()).document.network
    assert (alone.connections, alone.waiting, alone.total_s, alone.bytes_up) == (100, 8, 3600.0, None)


@pytest.mark.parametrize(
    "limit",
    [
        *({"connections": 0}, {"connections": 10_001}, {"connections_per_minute": 0}, {"waiting": -1}, {"wait_s": 0.0}),
        *({"connect_s": 301.0}, {"idle_s": -1.0}, {"total_s": 1e9}, {"bytes_up": 0}, {"bytes_down": 1.5}, {"x": 1}),
    ],
)
def test_limits_of_connections_have_bounds(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limit))):
        document(network=limit)


def test_of_two_sizes_for_one_tool_the_smaller_counts() -> None:
    both = [document(eviction={"tools": {"execute": {"limit_chars": limit}}}) for limit in (9000, 4000)]
    assert Policy(*both).document.eviction.sizes("execute").limit_chars == 4000


def test_what_neither_layer_writes_is_the_default_and_one_that_writes_alone_is_heard() -> None:
    held = Policy(document(redaction={"well_known": False}, opaque="allow"), document()).document
    assert not held.redaction.well_known
    assert held.opaque == "allow"
    assert held.limits == document().limits
    assert held.eviction.limit_chars == 80_000


def test_the_version_names_the_content_of_both_layers() -> None:
    tenant, operator = document(description="a"), document(description="b")
    versions = {Policy(tenant).version, Policy(tenant, operator).version, Policy(operator, tenant).version}
    assert len(versions) == 3
    assert Policy(tenant, operator).version == Policy(document(description="a"), document(description="b")).version


def test_groups_apply_where_they_are_used_through_other_groups_too_and_once() -> None:
    groups = {
        "keys": {"rules": [rule("no-keys", "deny", "/workspace/keys/**")]},
        "base": {"use": ["keys"], "rules": [rule("all", "allow", "/workspace/**")]},
        "idle": {"rules": [rule("nothing", "deny", "/workspace/**")]},
    }
    policy = Policy(document(groups=groups, use=["base", "keys"]))
    assert read(policy, "/workspace/a") == ("allow", "all")
    assert read(policy, "/workspace/keys/a") == ("deny", "no-keys")
    assert len(policy.judge("read_file", {"path": "/workspace/keys/a"}).trace) == 2


@pytest.mark.parametrize(
    "text,line,field,message",
    [
        ("version: 1\nuse: [a]", 2, "use[0]", "there is no group 'a'"),
        ("version: 1\ngroups:\n  a: {}\nuse: [a, a]", 4, "use[1]", "named twice"),
        ("version: 1\ngroups:\n  a:\n    use: [a]\n", 4, "groups.a.use[0]", "a -> a"),
        ("version: 1\ngroups:\n  a: {use: [b]}\n  b:\n    use: [c]\n  c: {use: [a]}\n", 3, "groups.a.use[0]", "circle"),
        ("version: 1\ngroups:\n  A b: {}", 3, "groups.A b", "not an id"),
        ("version: 1\ngroups:\n  a: {rule: []}", 3, "groups.a.rule", "allowed here: use, rules"),
    ],
)
def test_a_group_that_cannot_be_used_is_a_problem_at_its_place(text: str, line: int, field: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(text, "p")
    assert (line, field) in [(error.line, error.field) for error in caught.value.errors], caught.value.errors
    assert message in str(caught.value)


def test_tests_of_a_file_are_judged_with_the_operators_layer() -> None:
    text = (
        "version: 1\nrules:\n- {id: a, tools: [ls], effect: allow, reason: r}\ntests:\n"
        "- {tool: ls, args: {path: /workspace}, verdict: allow}"
    )
    assert load_policy(text, "p")
    with pytest.raises(PolicyError, match=r"tests\[0\]: expected allow, and it is deny by operator/no"):
        load_policy(text, "p", document(rules=[{"id": "no", "tools": ["ls"], "effect": "deny", "reason": "r"}]))
    assert load_document(text, "p").tests


def test_sections_of_both_layers_may_have_fields_of_the_same_name() -> None:
    fields = {
        "sandbox": {"image": "a", "runtime": "runc", "memory_mib": 512, "home": "read_only", "snapshots": "run"},
        "limits": {"steps": 5, "run_s": 10.0},
        "eviction": {"limit_chars": 50_000, "tools": {"execute": {"limit_chars": 40_000}}},
        "quotas": {"runs_at_once": 2, "snapshots": 5},
        "redaction": {"well_known": True},
    }
    # The same name with two meanings.
    assert fields["quotas"].keys() & fields["sandbox"].keys() == {"snapshots"}
    both = Policy(document(**fields), document(quotas={"snapshots": 3}, sandbox={"snapshots": "asked"})).document
    assert (both.quotas.snapshots, both.sandbox.snapshots) == (3, "asked")
    twice = Policy(document(**fields), document(**fields)).document
    assert (twice.quotas, twice.limits, twice.sandbox) == tuple(
        getattr(document(**fields), section) for section in ("quotas", "limits", "sandbox")
    )
