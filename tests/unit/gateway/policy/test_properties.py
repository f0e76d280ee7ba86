"""What holds for every policy and every call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import Policy, PolicyDocument
from gateway.policy.decision import STRICTNESS, Decision, Facts
from gateway.policy.fields import TOOLS
from gateway.policy.judge import compile_grants
from tests.examples import examples

PROGRAMS = ["ls", "cat", "git", "push", "*", ["ls", "cp"], "env", "mytool"]
PATHS = ["/workspace/**", "/workspace/*", "/workspace/a", "/**/a", "/tmp/**", "/**", "/workspace/a/b/**"]
WHENS = ["tool == 'ls'", "path == '/workspace/a'", "argv.size() > 1", "args.missing == 1", "host == 'a.b'", "port < 10"]


def _rules(effects: Sequence[str] = ("allow", "ask", "deny")) -> st.SearchStrategy[list[dict[str, Any]]]:
    more: dict[str, st.SearchStrategy[Any]] = {
        "when": st.sampled_from(WHENS),
        "mode": st.sampled_from(["enforce", "enforce", "shadow"]),
        "time": st.just({"days": ["mon", "tue", "wed", "thu"]}),
        "rate": st.just({"calls": 5, "per": "minute"}),
    }
    argv = st.lists(st.lists(st.sampled_from(PROGRAMS), min_size=1, max_size=2), min_size=1, max_size=2)
    paths = st.lists(st.sampled_from(PATHS), min_size=1, max_size=2)
    hosts = st.lists(st.sampled_from(["a.b", "*.a.b", "a.b:80", "127.0.0.1", "10.0.0.0/8"]), min_size=1, max_size=2)
    methods = st.lists(st.sampled_from(["GET", "PUT"]), min_size=1, max_size=2)
    effect = st.sampled_from(list(effects))
    unless = {
        "execute": {"argv": argv},
        "read": {"paths": paths},
        "write": {"paths": paths},
        "connect": {"hosts": hosts, "methods": methods},
    }
    names = {
        "execute": ("argv", argv),
        "read": ("paths", paths),
        "write": ("paths", paths),
        "connect": ("hosts", hosts),
    }
    kinds = [
        st.fixed_dictionaries(
            {"tools": st.just([tool]), "effect": effect},
            optional={names[tool][0]: names[tool][1], "unless": st.fixed_dictionaries(unless[tool]), **more},
        )
        for tool in names
    ]
    return st.lists(st.one_of(kinds), max_size=6)


def document(rules: Iterable[dict[str, Any]], prefix: str = "r", **fields: Any) -> PolicyDocument:
    written = []
    for place, rule in enumerate(rules):
        kept = {name: value for name, value in rule.items() if not (name == "rate" and rule["effect"] == "deny")}
        written.append({"id": f"{prefix}{place}", "reason": "why", **kept})
    return PolicyDocument.model_validate_json(json.dumps({"version": 1, "rules": written, **fields}))


LINES = [
    "ls",
    "git push",
    "ls a; cat b",
    "env git a",
    "ls > a",
    "cat $x",
    "git *",
    "mytool $x",
    "eval ls",
    "cp a /tmp/b",
]
LINES += ["curl http://a.b/", "curl $u", "for f in a b; do cat $f; done", "rm -rf a", "grep -r x .", "ls | xargs cat"]
CALLS: list[tuple[str, dict[str, Any]]] = [
    *(("execute", {"command": line}) for line in LINES),
    *(("read_file", {"path": path}) for path in ["/workspace", "/workspace/a", "/tmp/a/b", "/etc"]),
    *(("grep", {"path": path, "pattern": "x"}) for path in ["/workspace", "/tmp/b"]),
    ("write_file", {"path": "/workspace/a", "content": "x"}),
    ("connect", {"host": "a.b", "port": 80}),
    ("connect", {"host": "x.a.b", "port": 443}),
    ("connect", {"host": "10.0.0.1", "port": 443, "method": "GET", "path": "/a"}),
]
OPAQUE = st.sampled_from(["deny", "ask", "allow"])


def judge(policy: Policy, **more: Any) -> list[Decision]:
    return [policy.judge(tool, arguments, **more) for tool, arguments in CALLS]


def strictness(decisions: Iterable[Decision]) -> list[int]:
    return [STRICTNESS[decision.verdict] for decision in decisions]


@examples(100)
@given(st.data(), _rules(), OPAQUE)
def test_the_order_of_rules_and_the_groups_they_stand_in_never_change_a_verdict(
    data: st.DataObject, rules: list[dict[str, Any]], opaque: str
) -> None:
    named = document(rules).model_dump(mode="json", exclude_unset=True).get("rules", [])
    order = data.draw(st.permutations(named))
    cut = data.draw(st.integers(0, len(order)))
    groups = {"a": {"rules": order[:cut], "use": ["b"]}, "b": {"rules": order[cut:]}}
    grouped = PolicyDocument.model_validate_json(
        json.dumps({"version": 1, "opaque": opaque, "groups": groups, "use": ["a"]})
    )
    for plain, other in zip(judge(Policy(document(rules, opaque=opaque))), judge(Policy(grouped)), strict=True):
        assert plain.verdict == other.verdict
        assert set(plain.limits) == set(other.limits)
        assert set(plain.asked) == set(other.asked)
        assert (plain.would_be or (plain.verdict,))[0] == (other.would_be or (other.verdict,))[0]


@examples(100)
@given(_rules(), _rules(["deny"]), OPAQUE)
def test_another_rule_that_denies_never_loosens(
    rules: list[dict[str, Any]], more: list[dict[str, Any]], opaque: str
) -> None:
    before = strictness(judge(Policy(document(rules, opaque=opaque))))
    after = strictness(judge(Policy(document([*rules, *more], opaque=opaque))))
    assert all(later >= earlier for earlier, later in zip(before, after, strict=True))


@examples(100)
@given(_rules(), _rules(["allow"]), OPAQUE)
def test_another_rule_that_allows_never_tightens_unless_it_cannot_be_evaluated(
    rules: list[dict[str, Any]], more: list[dict[str, Any]], opaque: str
) -> None:
    more = [{name: value for name, value in rule.items() if name != "when"} for rule in more]
    before = strictness(judge(Policy(document(rules, opaque=opaque))))
    after = strictness(judge(Policy(document([*rules, *more], opaque=opaque))))
    assert all(later <= earlier for earlier, later in zip(before, after, strict=True))


@examples(100)
@given(_rules(), _rules(), OPAQUE)
def test_rules_in_shadow_never_change_a_verdict_and_say_what_enforcing_them_would(
    rules: list[dict[str, Any]], more: list[dict[str, Any]], opaque: str
) -> None:
    enforced = [{**rule, "mode": "enforce"} for rule in rules]
    plain = judge(Policy(document(enforced, opaque=opaque)))
    shadowed = judge(Policy(document([*enforced, *({**rule, "mode": "shadow"} for rule in more)], opaque=opaque)))
    would = judge(Policy(document([*enforced, *({**rule, "mode": "enforce"} for rule in more)], opaque=opaque)))
    for now, with_shadow, then in zip(plain, shadowed, would, strict=True):
        assert (with_shadow.verdict, with_shadow.rule) == (now.verdict, now.rule)
        assert with_shadow.limits == now.limits
        assert (with_shadow.would_be or (with_shadow.verdict,))[0] == then.verdict


@examples(100)
@given(_rules(), _rules(), OPAQUE)
def test_a_grant_turns_an_ask_and_never_a_deny(
    rules: list[dict[str, Any]], granted: list[dict[str, Any]], opaque: str
) -> None:
    policy = Policy(document(rules, opaque=opaque))
    grants = compile_grants(document(granted).rules)
    for without, with_grants in zip(judge(policy), judge(policy, grants=grants), strict=True):
        if without.verdict == "ask":
            assert with_grants.verdict in ("ask", "allow")
        else:
            assert (with_grants.verdict, with_grants.rule) == (without.verdict, without.rule)


@examples(100)
@given(_rules(), _rules(), OPAQUE)
def test_two_layers_are_never_laxer_than_the_rules_of_both_in_one_file(
    tenant: list[dict[str, Any]], operator: list[dict[str, Any]], opaque: str
) -> None:
    layered = Policy(document(tenant, opaque=opaque), document(operator, "o", opaque=opaque))
    merged = Policy(document([*operator, *tenant], opaque=opaque))
    swapped = Policy(document(operator, "o", opaque=opaque), document(tenant, opaque=opaque))
    assert strictness(judge(layered)) == strictness(judge(merged)) == strictness(judge(swapped))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.sampled_from(
        ["/workspace/\0", "/workspace/a\nb", "/" + "x" * 5000, "\ud800", "/workspace/\udc80", "ls \r rm"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["path", "command", "content", "new_text", "pattern", "host", "port", "x"]), VALUES, max_size=4
)


@examples(300)
@given(_rules(), st.sampled_from(sorted(TOOLS)) | st.text(max_size=20), ARGUMENTS)
def test_judging_never_raises_whatever_the_arguments(
    rules: list[dict[str, Any]], tool: str, arguments: dict[str, Any]
) -> None:
    decision = Policy(document(rules)).judge(tool, arguments, Facts(thread="\ud800"))
    assert decision.verdict in STRICTNESS
    assert decision.reason.encode()
    assert json.dumps([match.part for match in decision.trace]).encode()


@examples(200)
@given(st.text(min_size=1, max_size=30))
def test_a_name_that_is_not_the_allowed_one_letter_by_letter_is_not_it(name: str) -> None:
    policy = Policy(
        document(
            [
                {"tools": ["read"], "paths": ["/workspace/caf\u00e9"], "effect": "allow"},
                {"tools": ["execute"], "argv": [["mytool"]], "effect": "allow"},
            ]
        )
    )
    allowed = policy.judge("read_file", {"path": f"/workspace/{name}"}).verdict == "allow"
    assert allowed == (name == "caf\u00e9")
    quoted = "'" + name.replace("'", "") + "'"
    if policy.judge("execute", {"command": quoted}).verdict == "allow":
        assert quoted == "'mytool'"


def test_look_alikes_of_a_path_are_other_paths() -> None:
    policy = Policy(document([{"tools": ["read"], "paths": ["/workspace/caf\u00e9/**"], "effect": "allow"}]))
    assert policy.judge("read_file", {"path": "/workspace/caf\u00e9/a"}).verdict == "allow"
    for path in [
        *[
            "/workspace/cafe\u0301/a",
            "/workspace/c\u0430f\u00e9/a",
            "/workspace\u2215caf\u00e9/a",
            "/workspace/caf\u00e9",
        ],
        *["/workspace/caf\u00e9\0/a", "/workspace/caf\u00e9\n/a", "/workspace/CAF\u00c9/a", "/workspace//caf\u00e9/a"],
        *["/workspace/caf\u00e9/../a", "/workspace/./caf\u00e9/a", "/workspace/%63af\u00e9/a", "workspace/caf\u00e9/a"],
        *["/workspace/caf\u00e9/" + "x" * 4096, "/workspace/caf\u00e9/a/", "/workspace/caf\u00e9/\ud800"],
    ]:
        expected = "allow" if path == "/workspace/caf\u00e9" else "deny"
        assert policy.judge("read_file", {"path": path}).verdict == expected, path
