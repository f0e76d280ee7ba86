"""Policy files: what is wrong, where, and what is allowed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy import STARTER_POLICY, PolicyDocument, PolicyError, load_document, load_policy
from gateway.policy.document import Rule
from gateway.policy.loading import LIMIT_BYTES, decoded

DENY = "{id: d, tools: [execute], effect: deny, reason: r"
RULE = "{id: a, tools: [execute], effect: allow, reason: r"
CONNECT = "{id: c, tools: [connect], effect: allow, reason: r"


def problems(text: str) -> list[tuple[int, str, str]]:
    """Every problem of a text that does not load."""
    with pytest.raises(PolicyError) as caught:
        load_policy(text, "p.yaml")
    return [(error.line, error.field, error.message) for error in caught.value.errors]


def test_the_starter_policy_loads_and_says_the_defaults() -> None:
    document = load_policy(STARTER_POLICY, "starter.yaml").document
    bare = load_policy("version: 1\nrules: []", "bare.yaml").document
    own = {"home": "read_only"}
    assert document.sandbox == bare.sandbox.model_copy(update=own)
    assert (document.limits, document.eviction) == (bare.limits, bare.eviction)
    assert (document.opaque, document.enforcement) == ("deny", "kernel")
    assert (document.limits.steps, document.limits.output_tokens, document.limits.run_s) == (25, 32_768, 300)


def test_sizes_of_eviction_can_be_set_for_a_tool() -> None:
    text = "version: 1\nrules: []\neviction: {tools: {execute: {limit_chars: 1000, head_chars: 10, tail_chars: 20}}}"
    eviction = load_policy(text, "p").document.eviction
    assert eviction.sizes("execute").limit_chars == 1000
    assert eviction.sizes("other").limit_chars == 80_000


def test_any_tool_that_does_not_page_can_have_sizes_of_its_own_and_they_survive_json() -> None:
    sizes = "{limit_chars: 100, head_chars: 10, tail_chars: 20}"
    text = f"version: 1\nrules: []\neviction: {{limit_chars: 5000, tools: {{web.fetch-2: {sizes}}}}}"
    document = load_policy(text, "p").document
    for eviction in (document.eviction, PolicyDocument.model_validate_json(document.model_dump_json()).eviction):
        assert eviction.sizes("web.fetch-2").limit_chars == 100
        assert (eviction.sizes("execute").limit_chars, eviction.sizes("web.fetch").limit_chars) == (5000, 5000)


@pytest.mark.parametrize(
    "text,line,field,message",
    [
        ("", 1, "", "empty"),
        ("- a", 1, "", "must be a mapping"),
        ("rules: []", 1, "version", "missing"),
        ("version: 2\nrules: []", 1, "version", "allowed: 1"),
        ("version: 1\nrules: []\nfoo: 1", 3, "foo", "unknown field; allowed here: version, description, sandbox"),
        ("version: 1\nrules: []\nsandbox:\n  runtime: crun", 4, "sandbox.runtime", "'runc', 'runsc'"),
        ("version: 1\nrules: []\nsandbox:\n  memory_mib: '5'", 4, "sandbox.memory_mib", "integer"),
        ("version: 1\nrules: []\nsandbox:\n  pids: yes", 4, "sandbox.pids", "integer"),
        ("version: 1\nrules: []\nsandbox:\n  cpus: .nan", 4, "sandbox.cpus", "finite"),
        ("version: 1\nrules: []\nlimits:\n  steps: 0", 4, "limits.steps", "greater than or equal to 1"),
        ("version: 1\nrules: []\nlimits:\n  step: 1", 4, "limits.step", "allowed here: timeout_s, steps"),
        ("version: 1\nrules: []\nlimits: []", 3, "limits", "must be a mapping with these fields: timeout_s"),
        ("version: 1\nrules: []\nopaque: maybe", 3, "opaque", "allowed: 'deny', 'ask', 'allow'"),
        ("version: 1\nrules: []\neviction:\n  head_chars: 90000", 3, "eviction", "not be more than limit_chars"),
        ("version: 1\nrules: []\neviction:\n  head_chars: 100001", 4, "eviction.head_chars", "less than or equal"),
        (
            "version: 1\nrules: []\neviction:\n  {limit_chars: 200000, head_chars: 60000, tail_chars: 60000}",
            3,
            "eviction",
            "not be more than 100,000",
        ),
        ("version: 1\nrules: []\neviction:\n  tools: {ls: {}}", 4, "eviction.tools.ls", "its results come in pages"),
        ("version: 1\nrules: []\neviction:\n  tools: {a b: {}}", 4, "eviction.tools.a b", "letters, digits"),
        ("version: 1\nrules: []\neviction:\n  tools: {x: 5}", 4, "eviction.tools.x", "must be a mapping"),
        (
            "version: 1\nrules: []\neviction:\n  tools: {x: {limit_chars: 200}}",
            4,
            "eviction.tools.x",
            "not be more than limit_chars",
        ),
        ("version: 1\nrules: 5", 2, "rules", "must be a list"),
        ("version: 1\nrules:\n- {}", 3, "rules[0].id", "mandatory"),
        (f"version: 1\nrules:\n- {RULE}, id: b}}", 3, "rules[0].id", "written twice"),
        (f"version: 1\nrules:\n- {RULE}}}\n- {RULE}}}", 4, "rules[1].id", "line 3 already"),
        ("version: 1\nrules:\n- {id: a, tools: [execute], effect: allow}", 3, "rules[0].reason", "mandatory"),
        ("version: 1\nrules:\n- {id: a, tools: [execute], effect: allow, reason: no}", 3, "rules[0].reason", "quotes"),
        ("version: 1\nrules:\n- {id: A b, tools: [ls], effect: deny, reason: r}", 3, "rules[0].id", "not an id"),
        (
            "version: 1\nrules:\n- {id: opaque, tools: [ls], effect: deny, reason: r}",
            3,
            "rules[0].id",
            "choose another",
        ),
        (
            "version: 1\nrules:\n- id: a\n  tools: [ls]\n  effect: warn\n  reason: r",
            5,
            "rules[0].effect",
            "allowed: 'allow', 'ask', 'deny'",
        ),
        (f"version: 1\nrules:\n- {RULE}, mode: audit}}", 3, "rules[0].mode", "allowed: 'enforce', 'shadow'"),
        ("version: 1\nrules:\n- {id: a, tools: [bash], effect: deny, reason: r}", 3, "rules[0].tools[0]", "'execute'"),
        ("version: 1\nrules:\n- {id: a, tools: [], effect: deny, reason: r}", 3, "rules[0].tools", "at least 1"),
        (f"version: 1\nrules:\n- {RULE}, paths: [/a]}}", 3, "rules[0]", "for execute write argv"),
        (
            "version: 1\nrules:\n- {id: a, tools: [ls], effect: deny, reason: r, argv: [[ls]]}",
            3,
            "rules[0]",
            "write paths",
        ),
        (
            "version: 1\nrules:\n- {id: a, tools: [ls, execute], effect: deny, reason: r}",
            3,
            "rules[0]",
            "one for each kind",
        ),
        (f"version: 1\nrules:\n- {RULE}, argv: [git]}}", 3, "rules[0].argv[0]", "[[git, [status, diff]], [ls]]"),
        (f"version: 1\nrules:\n- {RULE}, argv: [[git, no]]}}", 3, "rules[0].argv[0][1]", "need quotes"),
        (f"version: 1\nrules:\n- {RULE}, argv: [[git status]]}}", 3, "rules[0].argv[0]", "write the words apart"),
        (f"version: 1\nrules:\n- {RULE}, argv: []}}", 3, "rules[0].argv", "lists of words"),
        (
            "version: 1\nrules:\n- id: a\n  tools: [ls]\n  effect: deny\n  reason: r\n  paths:\n  - /a\n  - b/*",
            9,
            "rules[0].paths[1]",
            "not absolute",
        ),
        (
            f"version: 1\nrules:\n- {RULE}, argv: [[git]],\n   examples: {{match: [git status,\n    git; ls]}}}}",
            5,
            "rules[0].examples.match[1]",
            "does not match rule 'a'",
        ),
        (
            f"version: 1\nrules:\n- {RULE}, argv: [[git]],\n   examples: {{not_match: [git push]}}}}",
            4,
            "rules[0].examples.not_match[0]",
            "must not",
        ),
        (
            f"version: 1\nrules:\n- {RULE}, argv: [[a], [b]]}}\n- {DENY}, argv: [[b], [a]]}}",
            3,
            "rules[0].effect",
            "rule 'a' can never allow anything: 'd' in line 4 denies all of it",
        ),
        (f"version: 1\nrules:\n- {RULE}, when: 1 +}}", 3, "rules[0].when", "not an expression of CEL"),
        (f"version: 1\nrules:\n- {RULE}, when: foo == 1}}", 3, "rules[0].when", "unknown name 'foo'"),
        (f"version: 1\nrules:\n- {RULE}, argv: [[a, {{path: [x]}}]]}}", 3, "rules[0].argv[0][1].path[0]", "absolute"),
        (f"version: 1\nrules:\n- {RULE}, argv: [[a, {{word: x}}]]}}", 3, "rules[0].argv[0][1].word", "allowed here"),
        (f"version: 1\nrules:\n- {RULE}, argv: [[a, {{}}]]}}", 3, "rules[0].argv[0][1]", "one of path, number"),
        (f"version: 1\nrules:\n- {RULE}, argv: [[a, {{matches: (}}]]}}", 3, "rules[0].argv[0][1].matches", "RE2"),
        (f"version: 1\nrules:\n- {RULE}, examples: {{match: [5]}}}}", 3, "rules[0].examples.match[0]", "as a mapping"),
        (f"version: 1\nrules:\n- {RULE}, unless: {{}}}}", 3, "rules[0].unless", "leave it out"),
        (f"version: 1\nrules:\n- {RULE}, time: {{since: 9}}}}", 3, "rules[0].time.since", "quotes"),
        (
            "version: 1\nrules:\n- {id: a, tools: [connect], effect: allow, reason: r, hosts: [Pypi.org]}",
            3,
            "rules[0].hosts[0]",
            "is judged as 'pypi.org'",
        ),
        (
            "version: 1\nrules:\n- {id: a, tools: [connect], effect: allow, reason: r, examples: {match: [pypi.org]}}",
            3,
            "rules[0].examples.match[0]",
            "write HOST:PORT",
        ),
        (f"version: 1\nrules:\n- {CONNECT}, hosts: [a.b, '*.com']}}", 3, "rules[0].hosts[1]", "*.com is too wide"),
        (f"version: 1\nrules:\n- {CONNECT}, hosts: [10.0.0.0/4]}}", 3, "rules[0].hosts[0]", "judged as '0.0.0.0/4'"),
        (f"version: 1\nrules:\n- {CONNECT}, hosts: [0.0.0.0/4]}}", 3, "rules[0].hosts[0]", "/8 or more"),
        (f"version: 1\nrules:\n- {CONNECT}, hosts: ['*']}}", 3, "rules[0].hosts[0]", "without hosts is about every"),
        (f"version: 1\nrules:\n- {CONNECT}, methods: [get]}}", 3, "rules[0].methods[0]", "in capital letters"),
        (f"version: 1\nrules:\n- {CONNECT}, methods: [CONNECT]}}", 3, "rules[0].methods[0]", "leave methods out"),
        (f"version: 1\nrules:\n- {CONNECT}, methods: []}}", 3, "rules[0].methods", "at least 1"),
        (f"version: 1\nrules:\n- {CONNECT}, url_paths: [/a?x=1]}}", 3, "rules[0].url_paths[0]", "do not see the query"),
        (f"version: 1\nrules:\n- {RULE}, methods: [GET]}}", 3, "rules[0]", "methods is for connect"),
        (f"version: 1\nrules:\n- {RULE}, unless: {{url_paths: [/a]}}}}", 3, "rules[0]", "url_paths is for connect"),
        ("version: 1\nnetwork: {connections: 0}", 2, "network.connections", "1"),
        (
            "version: 1\ntests:\n- {tool: ls, args: {path: /a}, verdict: allow}",
            3,
            "tests[0]",
            "expected allow, and it is deny by default-deny",
        ),
        ("version: 1\ntests:\n- {tool: ls, verdict: deny, at: noon}", 3, "tests[0].at", "is not a time"),
        ("version: 1\nredaction: {patterns: [{id: a, pattern: '(?=a)'}]}", 2, "redaction.patterns[0].pattern", "RE2"),
        ("version: 1\nrules: [\n", 3, "", "not valid YAML"),
        ("version: 1\n\trules: []", 2, "", "not valid YAML"),
        ("version: 1\nrules: &a []", 2, "", "aliases"),
        ("version: 1\nrules: *a", 2, "", "aliases"),
        ("version: 1\nrules: !!python/object:os.system []", 2, "rules", "tag"),
        ("version: 1\nrules: []\n---\nversion: 1", 3, "", "second document"),
        ("version: 1\nrules: " + "[" * 50, 2, "", "20 levels"),
        ("version: 1\nrules: []\n? [a]\n: b", 3, "", "plain text"),
        ("version: 1\nrules: []\n<<: {a: 1}", 3, "<<", "unknown field"),
        ("version: 1\nrules: []\ndescription: \0", 1, "", "not valid YAML"),
        ("version: 1\nrules: []\n#" + "x" * LIMIT_BYTES, 1, "", "larger than"),
    ],
)
def test_a_problem_names_its_line_its_field_and_what_is_allowed(text: str, line: int, field: str, message: str) -> None:
    found = problems(text)
    assert (line, field) in [(at, name) for at, name, _ in found]
    assert any(message in said for at, name, said in found if (at, name) == (line, field)), found


def test_a_deny_rule_may_be_as_wide_as_it_likes() -> None:
    wide = "version: 1\nrules:\n- {id: a, tools: [connect], effect: %s, reason: r, hosts: ['*.com', 0.0.0.0/0]}"
    assert load_policy(wide % "deny", "p")
    assert len(problems(wide % "allow")) == len(problems(wide % "ask")) == 2


@pytest.mark.parametrize(
    "host, operator, problem",
    [
        ("10.0.0.5", [], "10.0.0.5 is a private address, which the operator has to name"),
        ("10.0.0.0/16:443", ["11.0.0.0/8", "10.0.0.5:80"], "10.0.0.0/16 is a private address"),
        ("'[fd00::1]'", [], "fd00::1 is a private address"),
        ("169.254.169.254", ["pypi.org"], "a link-local address"),
        ("10.0.0.5", ["10.0.0.0/8"], ""),
        ("10.0.0.0/16:443", ["10.0.0.5:443"], ""),
        ("127.0.0.1", [], "127.0.0.1 is a loopback address"),
        ("1.1.1.1", [], ""),
        ("1.1.1.0/24", [], ""),
    ],
)
def test_an_address_that_only_the_operator_may_name_does_not_load_beside_a_layer_without_it(
    host: str, operator: list[str], problem: str
) -> None:
    text = f"version: 1\nrules:\n- {CONNECT}, hosts: [{host}]}}"
    rule = Rule(id="o", tools=("connect",), effect="allow", reason="r", hosts=tuple(operator) or None)
    above = PolicyDocument(version=1, rules=(rule,))
    assert load_policy(text, "p")
    if not problem:
        assert load_policy(text, "p", above)
        return
    with pytest.raises(PolicyError) as caught:
        load_policy(text, "p", above)
    (found,) = caught.value.errors
    assert (found.line, found.field) == (3, "rules[0].hosts[0]")
    assert problem in found.message


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    found = problems("version: 2\nfoo: 1\nrules:\n- {id: a, tools: [x], effect: maybe, reason: r}\nopaque: 1")
    assert [line for line, _, _ in found] == [1, 2, 4, 4, 5]


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    levels = "\n".join(f"l{n}: &l{n} [" + ", ".join([f"*l{n - 1}"] * 9 if n else ["x"] * 9) + "]" for n in range(9))
    assert "aliases" in problems(levels)[0][2]


def test_values_that_yaml_reads_as_dates_stay_text() -> None:
    assert load_policy("version: 1\nrules: []\ndescription: 2024-01-31", "p").document.description == "2024-01-31"


def test_an_example_is_judged_by_its_rule_alone_at_any_time_and_may_be_a_mapping() -> None:
    """Files that `cat` names are other rules' business, and a file must not fail to load at night."""
    text = """
version: 1
rules:
- id: a
  tools: [execute]
  argv: [[cat]]
  effect: allow
  reason: r
  mode: shadow
  time: {days: [mon], since: "03:00", until: "03:01"}
  examples:
    match: [cat /etc/passwd, {command: cat x, timeout_s: 5}]
    not_match: [cat x > y]
- id: b
  tools: [write_file]
  effect: deny
  reason: r
  size_bytes: {over: 3}
  unless: {time: {days: [mon, tue, wed, thu, fri, sat, sun]}}
  examples:
    match: [{path: /workspace/a, content: four}]
    not_match: [{path: /workspace/a, content: two}]
- id: c
  tools: [connect]
  hosts: [pypi.org]
  effect: ask
  reason: r
  examples: {match: ["PyPI.org:443"], not_match: ["a.org:443", "[::1]:443"]}
"""
    assert load_policy(text, "p")


def test_many_rules_with_examples_load_and_too_many_examples_do_not() -> None:
    rule = "- {{id: r{0}, tools: [ls], paths: [/w/{0}], effect: allow, reason: r, examples: {{match: [{1}]}}}}\n"
    text = "version: 1\nrules:\n" + "".join(rule.format(place, f"/w/{place}") for place in range(2000))
    assert len(load_policy(text, "p").document.rules) == 2000
    many = "version: 1\nrules:\n" + "".join(rule.format(place, ", ".join(["/w"] * 100)) for place in range(201))
    assert "20100 examples; a policy has at most 20000" in problems(many)[0][2]


def test_the_error_names_source_line_and_field() -> None:
    with pytest.raises(PolicyError, match=r"^tenant\.yaml:3: limits\.steps: "):
        load_policy("version: 1\nrules: []\nlimits: {steps: x}", "tenant.yaml")


def test_a_file_that_is_no_text_is_a_problem_of_its_line() -> None:
    with pytest.raises(PolicyError, match=r"^p.yaml:2: not UTF-8 text$"):
        decoded(b"version: 1\ndescription: caf\xe9\n", "p.yaml")
    with pytest.raises(PolicyError, match="larger"):
        load_policy(decoded(b"\xe9" * (LIMIT_BYTES + 1), "p.yaml"), "p.yaml")


def test_the_tutorial_is_true() -> None:
    """Each policy in docs/policy.md loads, so its examples hold."""
    pages = (Path(__file__).parents[4] / "docs" / "policy.md").read_text()
    policies = [block.split("```")[0] for block in pages.split("```yaml\n")[1:]]
    assert policies
    for text in policies:
        load_policy(text, "docs/policy.md")
    # What is to be pasted at the end of the tutorial's file.
    pasted = [block.split("```")[0] for block in pages.split("```yaml fragment\n")[1:]]
    assert len(pasted) == 1
    policy = load_policy(policies[0] + pasted[0], "docs/policy.md")
    assert policy.judge("execute", {"command": "git push origin main"}).verdict == "ask"


def test_a_test_at_no_time_is_refused_where_tests_are_not_judged_either() -> None:
    with pytest.raises(PolicyError, match=r"tests\[0\].at: 'noon' is not a time"):
        load_document("version: 1\ntests:\n- {tool: ls, verdict: deny, at: noon}", "p.yaml")
