"""What `lint` finds, one slip at a time, and what it leaves alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from gateway.policy import STARTER_POLICY
from gateway.policy.document import PolicyDocument
from gateway.policy.lint import Finding, lint
from gateway.policy.loading import read_policy
from gateway.policy.yaml_lines import read_yaml


def rule(id_: str, effect: str, tools: list[str], **more: Any) -> dict[str, Any]:
    return {"id": id_, "tools": tools, "effect": effect, "reason": "r", **more}


def execute(id_: str, effect: str, *argv: list[Any], **more: Any) -> dict[str, Any]:
    return rule(id_, effect, ["execute"], argv=list(argv), **more)


def paths(id_: str, effect: str, tools: list[str], *globs: str, **more: Any) -> dict[str, Any]:
    return rule(id_, effect, tools, paths=list(globs), **more)


def linted(*rules: dict[str, Any], operator: list[dict[str, Any]] | None = None, **sections: Any) -> list[Finding]:
    text = yaml.safe_dump({"version": 1, **sections, "rules": list(rules)}, sort_keys=False)
    # Loading refuses a rule that one other denies; what is dead for more reasons is what lint is for.
    reading = read_yaml(text)
    document = PolicyDocument.model_validate(reading.data)
    above = None if operator is None else PolicyDocument.model_validate_json(_json({"version": 1, "rules": operator}))
    return lint(document, reading, above)


def _json(value: object) -> str:
    import json

    return json.dumps(value)


def found(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def test_the_starter_policy_has_notes_only() -> None:
    read = read_policy(STARTER_POLICY, "starter")
    findings = lint(read.document, read.reading)
    assert {finding.severity for finding in findings} == {"note"}
    assert [finding.rule for finding in found(findings, "any-command")] == ["any-command"]


def test_a_narrow_policy_is_clean() -> None:
    assert not linted(
        paths("look", "allow", ["read"], "/workspace/**"),
        execute("git", "allow", ["git", ["status", "diff"], {"end": True}], ["ls"], ["cat"]),
    )


@pytest.mark.parametrize(
    "dead",
    [
        execute("dead", "allow", ["git", "push", "-f"]),
        execute("dead", "allow", ["git", "push", "--force"], ["git", ["push"], "*"]),
        execute("dead", "ask", ["git", "push", {"end": True}]),
        execute("dead", "allow", ["git", ["push", "pull"]]),
    ],
)
def test_a_rule_that_denials_cover_is_dead(dead: dict[str, Any]) -> None:
    findings = linted(dead, execute("no-push", "deny", ["git", "push"]), execute("no-pull", "deny", ["git", "pull"]))
    (finding,) = found(findings, "dead-rule")
    assert (finding.rule, finding.severity) == ("dead", "warning")
    assert "no-push" in finding.what


def test_the_operators_denial_covers_as_well_and_is_named_as_his() -> None:
    findings = linted(
        paths("etc", "allow", ["read_file"], "/etc/*.conf"),
        operator=[paths("no-etc", "deny", ["read_file"], "/etc/**")],
    )
    (finding,) = found(findings, "dead-rule")
    assert "operator/no-etc" in finding.what


@pytest.mark.parametrize(
    "alive",
    [
        execute("alive", "allow", ["git"]),
        execute("alive", "allow", ["git", "*"]),
        execute("alive", "deny", ["git", "push", "x"], mode="shadow"),
    ],
)
def test_a_wider_rule_is_not_dead(alive: dict[str, Any]) -> None:
    assert not found(linted(alive, execute("no-push", "deny", ["git", "push"])), "dead-rule")


@pytest.mark.parametrize(
    "narrower",
    [
        {"unless": {"argv": [["git", "push", "origin"]]}},
        {"when": "tenant == 'a'"},
        {"time": {"days": ["mon"]}},
        {"mode": "shadow"},
    ],
)
def test_a_denial_with_an_exception_a_condition_or_in_shadow_kills_nothing(narrower: dict[str, Any]) -> None:
    findings = linted(execute("a", "allow", ["git", "push", "x"]), execute("d", "deny", ["git", "push"], **narrower))
    assert not found(findings, "dead-rule")


def test_of_two_equal_rules_the_later_one_is_shadowed() -> None:
    findings = linted(execute("a", "allow", ["ls"]), execute("b", "allow", ["ls"]))
    assert [finding.rule for finding in found(findings, "shadowed-rule")] == ["b"]


def test_a_rule_with_a_rate_is_not_shadowed_by_one_without() -> None:
    findings = linted(
        execute("a", "allow", ["ls"]), execute("b", "allow", ["ls", "-l"], rate={"calls": 1, "per": "day"})
    )
    assert not found(findings, "shadowed-rule")


def test_an_unless_that_swallows_its_rule_is_found() -> None:
    findings = linted(
        paths("w", "allow", ["write"], "/workspace/src/**", unless={"paths": ["/workspace/**"]}),
        paths("x", "allow", ["write"], "/workspace/doc/**", unless={"paths": ["/workspace/doc/a"]}),
    )
    assert [finding.rule for finding in found(findings, "dead-rule")] == ["w"]


@pytest.mark.parametrize("glob", ["/workspace/*.{py,js}", "/~/x", "/$HOME/**", "/workspace/" + "a" * 300])
def test_a_glob_that_nothing_matches_is_found(glob: str) -> None:
    (finding,) = found(linted(paths("g", "allow", ["read"], glob)), "impossible-glob")
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "argv",
    [["python3"], ["bash"], ["node"], ["perl"], ["awk"], ["make"], ["npx"], ["*"], [["ls", "ruby"]], ["git"], ["env"]],
)
def test_an_allow_that_reaches_an_interpreter_is_a_warning_where_any_code_may_run(argv: list[Any]) -> None:
    findings = linted(execute("x", "allow", argv, ["sh"]), rule("r", "allow", ["read"]))
    assert [finding.rule for finding in found(findings, "reaches-interpreter")] == ["x"]


@pytest.mark.parametrize(
    "argv", [["ls"], ["git", "status", {"end": True}], ["python3", "--version"], ["find"], ["cat"]]
)
def test_an_allow_that_reaches_none_is_not(argv: list[Any]) -> None:
    findings = linted(execute("x", "allow", argv), rule("r", "allow", ["read"]))
    assert not found(findings, "reaches-interpreter")
    assert not found(findings, "runs-code")


@pytest.mark.parametrize(
    "name",
    """psql ipython bpftrace nmap ansible terraform kubectl docker tclsh guile racket ghci erl
    elixir scala groovy sbt mvn gradle cmake ctest rake openssl man mysql tcpdump""".split(),  # noqa: SIM905 - one name a line would take thirty
)
def test_a_program_that_runs_others_is_a_warning_where_its_arguments_are_free(name: str) -> None:
    (finding,) = found(linted(execute("x", "allow", [name])), "reaches-interpreter")
    assert finding.severity == "warning"


def test_an_interpreter_on_fixed_words_is_a_note() -> None:
    findings = linted(execute("x", "allow", ["python3", "-m", "pytest"]))
    assert [finding.severity for finding in found(findings, "runs-code")] == ["note"]


def test_an_interpreter_that_is_denied_again_is_not_reached() -> None:
    findings = linted(execute("x", "allow", ["python3"]), execute("no", "deny", [["python3", "python"]]))
    assert not found(findings, "reaches-interpreter")


def test_a_path_kept_from_read_file_and_open_to_others_is_found() -> None:
    findings = linted(
        rule("all", "allow", ["read"]),
        execute("cat", "allow", ["cat"], ["python3"]),
        paths("secret", "deny", ["read_file"], "/workspace/.env"),
    )
    what = found(findings, "side-door")[0].what
    assert "grep" in what
    assert "an interpreter" in what
    assert "cat (" not in what  # the file that cat names is judged as read_file


def test_a_path_kept_from_all_reading_tools_has_no_side_door() -> None:
    findings = linted(
        rule("all", "allow", ["read"]),
        execute("cat", "allow", ["cat"]),
        paths("secret", "deny", ["read"], "/workspace/.env"),
    )
    assert not [one for one in found(findings, "side-door") if one.severity == "warning"]


def test_a_path_kept_from_write_file_and_open_to_edit_file_is_found() -> None:
    findings = linted(rule("all", "allow", ["write"]), paths("lock", "deny", ["write_file"], "/workspace/lock"))
    assert "edit_file" in found(findings, "side-door")[0].what


def test_opaque_allow_beside_denied_commands_is_a_warning() -> None:
    no_curl = execute("no-curl", "deny", ["curl"])
    assert found(linted(no_curl, opaque="allow"), "opaque-allow")[0].severity == "warning"
    assert not found(linted(no_curl, opaque="deny"), "opaque-allow")
    assert not found(linted(execute("ls", "allow", ["ls"]), opaque="allow"), "opaque-allow")


def test_a_program_denied_by_its_full_path_alone_is_found() -> None:
    any_command = rule("any", "allow", ["execute"])
    assert found(linted(any_command, execute("no", "deny", ["/usr/bin/curl"])), "denied-by-path")
    assert not found(linted(any_command, execute("no", "deny", [["/usr/bin/curl", "curl"]])), "denied-by-path")
    assert not found(linted(any_command, execute("no", "deny", ["curl"])), "denied-by-path")


def test_patterns_that_match_nothing_at_all_are_found_with_their_lines() -> None:
    findings = linted(
        redaction={"patterns": [{"id": "p", "pattern": "a*"}]},
        results=[{"id": "q", "reason": "r", "contains": "(x|)"}],
    )
    assert [finding.line for finding in found(findings, "empty-match")] == [5, 9]


def test_circumstances_do_not_hide_what_a_rule_reaches() -> None:
    findings = linted(execute("x", "allow", ["python3"], time={"days": ["mon"]}, when="tenant == 'nobody'"))
    assert found(findings, "reaches-interpreter")


def test_rules_of_groups_are_looked_at_where_they_stand() -> None:
    findings = linted(groups={"g": {"rules": [execute("x", "allow", ["python3"])]}}, use=["g"])
    assert [(finding.rule, finding.line) for finding in found(findings, "reaches-interpreter")] == [("x", 5)]


def test_the_time_grows_about_as_the_rules_do() -> None:
    def seconds(count: int) -> float:
        rules = [execute(f"r{place}", "allow", [f"tool{place}", "x"]) for place in range(count)]
        rules += [paths(f"p{place}", "deny", ["read"], f"/workspace/{place}/**") for place in range(count)]
        text = yaml.safe_dump({"version": 1, "rules": rules})
        read = read_policy(text, "test")
        took = []
        for _ in range(4):  # the best of a few, in processor time: the machine may be busy
            started = time.process_time()
            lint(read.document, read.reading)
            took.append(time.process_time() - started)
        return min(took)

    # Ten times the rules: 10 to 20 times as long, where each rule looked at by each would be 100 times.
    assert seconds(400) < 50 * seconds(40)


def test_where_the_kernel_enforces_it_is_said_what_commands_get_of_rules_on_files() -> None:
    rules = (
        paths("look", "allow", ["read"], "/workspace/**"),
        paths("change", "allow", ["write"], "/workspace/src/**", "/tmp/**"),
        paths("notes", "allow", ["write"], "/workspace/*.md"),
        paths("tool-only", "allow", ["write"], "/workspace/*.txt", enforcement="gateway"),
        paths("generated", "deny", ["write"], "/workspace/src/generated/**"),
        paths("secrets", "deny", ["read"], "/workspace/secrets/**"),
        paths("large", "deny", ["write"], "/tmp/**", size_bytes={"over": 1000}),
    )
    checks = ("grants-nothing", "forbidden-inside", "forbidden-always", "unreadable")
    kernel, reading = linted(*rules, enforcement="kernel"), linted(*rules)
    assert [(check, finding.rule) for check in checks for finding in found(kernel, check)] == [
        ("grants-nothing", "notes"),
        ("forbidden-inside", "generated"),
        ("forbidden-always", "large"),
        ("unreadable", "change"),
    ]
    assert "cannot create files beside /workspace/src/generated" in found(kernel, "forbidden-inside")[0].what
    assert "write below /tmp and read nothing" in found(kernel, "unreadable")[0].what
    assert not [finding for check in checks for finding in found(reading, check)]


def test_what_only_reading_keeps_from_commands_is_said_with_a_layout_for_the_kernel() -> None:
    rules = (
        paths("look", "allow", ["read"], "/workspace/**"),
        paths("change", "allow", ["write"], "/workspace/**"),
        paths("secrets", "deny", ["read", "write"], "/workspace/secrets/**"),
        execute("inspect", "allow", ["cat"], ["git", ("status", "diff")]),
    )
    kernel, reading = linted(*rules, enforcement="kernel"), linted(*rules)
    assert [finding.rule for finding in found(reading, "by-reading")] == ["secrets"]
    assert "enforcement: kernel" in found(reading, "by-reading")[0].fix
    assert not found(kernel, "by-reading")
    assert not found(kernel, "side-door")
    assert "/workspace/src/**" in found(kernel, "forbidden-inside")[0].fix
    assert ".git/config" in found(kernel, "planted")[0].what
    narrower = linted(
        rules[0], paths("change", "allow", ["write"], "/workspace/src/**"), *rules[2:], enforcement="kernel"
    )
    assert not found(narrower, "planted")
    assert not found(narrower, "forbidden-inside")


def connect(id_: str, effect: str, *hosts: str, **more: Any) -> dict[str, Any]:
    return rule(id_, effect, ["connect"], **({"hosts": list(hosts)} if hosts else {}), **more)


def test_a_rule_about_connections_that_never_decides_is_found() -> None:
    dead = [
        connect("allow", "allow", "10.1.0.0/16", "10.2.3.4:443"),
        connect("no", "deny", "10.0.0.0/8"),
        connect("again", "deny", "10.9.9.9"),
        connect("get", "allow", "a.test", methods=["GET"], url_paths=["/v1/a"]),
        connect("all", "allow", "a.test", methods=["GET", "PUT"], url_paths=["/v1/**"]),
        connect("other", "allow", "a.test", methods=["POST"], url_paths=["/v1/**"]),
        connect("name", "allow", "b.test"),
        connect("excepted", "allow", "c.test:443", unless={"hosts": ["c.test"]}),
    ]
    findings = linted(*dead)
    assert [one.rule for one in found(findings, "dead-rule")] == ["allow", "excepted"]
    assert [one.rule for one in found(findings, "shadowed-rule")] == ["again", "get"]
    assert not [one for one in findings if one.rule in ("no", "all", "other", "name")]


def test_a_rule_for_any_host_and_an_address_that_only_the_operator_opens_are_noted() -> None:
    any_host, private, public = (
        connect("any", "allow"),
        connect("private", "ask", "10.0.0.5", "fine.test"),
        connect("public", "allow", "1.1.1.1", "[2a00::1]"),
    )
    findings = linted(private, public)
    assert [(one.check, one.rule, one.severity) for one in findings] == [("private-address", "private", "note")]
    assert [one.check for one in linted(any_host)] == ["any-host"]
    assert [one.check for one in linted(connect("loopback", "allow", "127.0.0.1"))] == ["private-address"]
    assert not linted(private, operator=[connect("o", "allow", "10.0.0.0/8")])


def test_a_glob_of_urls_that_matches_nothing_is_impossible() -> None:
    braces = connect("braces", "allow", "a.test", url_paths=["/{a,b}/c"])
    assert [one.rule for one in found(linted(braces), "impossible-glob")] == ["braces"]
    assert not linted(connect("plain", "allow", "a.test", url_paths=["/a/[bc]/**"]))
