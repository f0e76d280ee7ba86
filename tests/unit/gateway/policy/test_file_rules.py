"""What of a policy the sandbox's kernel enforces, and what a policy that asks for it may not have."""

from __future__ import annotations

import pytest

from gateway.policy import PolicyError, load_document, load_policy
from gateway.policy.file_rules import enforcement_of, file_rules_of
from gateway.policy.layers import scoped_rules
from sandbox.file_rules import FileRules

HEAD = "version: 1\nenforcement: kernel\n"


def rules(*lines: str, head: str = HEAD) -> str:
    return head + "rules:\n" + "".join(f"  - {{{line}, reason: r}}\n" for line in lines)


def file_rules(*lines: str) -> FileRules | None:
    return load_policy(rules(*lines), "policy.yaml").file_rules


def problem(text: str, operator: str | None = None) -> str:
    with pytest.raises(PolicyError) as raised:
        if operator is None:
            load_policy(text, "policy.yaml")
        load_policy(text, "tenant.yaml", load_document(operator or "", "operator.yaml"))
    return str(raised.value)


def test_directories_that_are_allowed_are_granted_and_what_is_denied_or_asked_about_is_forbidden() -> None:
    found = file_rules(
        "id: look, tools: [read], paths: [/workspace/**, /tmp/**], effect: allow",
        "id: change, tools: [write], paths: [/workspace/src/**], effect: allow",
        "id: key, tools: [read], paths: [/workspace/key], effect: deny",
        "id: deploy, tools: [write], paths: [/workspace/src/deploy/**], effect: ask",
    )
    assert found == FileRules(
        readable=("/workspace", "/tmp"),
        writable=("/workspace/src",),
        unreadable=("/workspace/key",),
        unwritable=("/workspace/src/deploy",),
    )


def test_a_single_path_grants_that_file() -> None:
    assert file_rules("id: a, tools: [read, write], paths: [/workspace/one], effect: allow") == FileRules(
        readable_files=("/workspace/one",), writable_files=("/workspace/one",)
    )


@pytest.mark.parametrize(
    "lines, programs",
    [
        (["argv: [[git, status], [[ls, ./run]]], effect: allow"], {"git", "ls", "/workspace/run"}),
        (["argv: [[git]], effect: allow", "argv: [[rm]], effect: ask, enforcement: reading"], {"git", "rm"}),
        (["argv: [[git]], effect: allow", "argv: [[rm]], effect: deny, enforcement: reading"], {"git"}),
        (["argv: [[git]], effect: allow", "effect: allow"], None),
        (["argv: [[git]], effect: allow", "effect: allow, mode: shadow"], {"git"}),
        (["argv: [['*', --version], [git]], effect: allow, enforcement: reading"], None),
        (["effect: deny"], None),
    ],
)
def test_commands_may_execute_what_rules_name(lines: list[str], programs: set[str] | None) -> None:
    found = file_rules(*(f"id: r{number}, tools: [execute], {line}" for number, line in enumerate(lines)))
    assert found is not None
    named = None if found.programs is None else set(found.programs) - {"git", "ls", "rm", "/workspace/run"}
    assert (found.programs is None) == (programs is None)
    assert programs is None or (
        set(found.programs or ()) == programs | (named or set()) and "xargs" in (named or set())
    )


@pytest.mark.parametrize(
    "line", ["argv: [['*', --version]]", "when: command == 'ls'", "unless: {argv: [[rm]]}", "argv: [['*']]"]
)
def test_a_rule_that_allows_by_other_words_than_a_programs_name_is_refused(line: str) -> None:
    assert "rules[0]" in problem(rules(f"id: a, tools: [execute], {line}, effect: allow"))
    assert "enforcement: reading" in problem(rules(f"id: a, tools: [execute], {line}, effect: allow"))


def test_a_rule_without_paths_is_about_every_file() -> None:
    assert file_rules("id: a, tools: [read], effect: allow", "id: b, tools: [write], effect: deny") == FileRules(
        readable=("/",), unwritable=("/",)
    )


@pytest.mark.parametrize(
    "rule",
    [
        "id: a, tools: [write], paths: ['/workspace/*.py'], effect: allow",
        "id: a, tools: [write], size_bytes: {up_to: 9}, effect: allow",
        "id: a, tools: [write], when: path != '', effect: allow",
        "id: a, tools: [write], unless: {paths: [/workspace/a]}, effect: allow",
        "id: a, tools: [write], at_once: 1, effect: allow",
        "id: a, tools: [write], effect: allow, enforcement: gateway",
        "id: a, tools: [write], effect: allow, mode: shadow",
        "id: a, tools: [edit_file, ls, grep, glob], effect: allow",
    ],
)
def test_what_the_kernel_cannot_tell_apart_grants_nothing(rule: str) -> None:
    assert file_rules(rule) == FileRules()


def test_a_deny_rule_with_conditions_forbids_whatever_they_say() -> None:
    assert file_rules("id: a, tools: [read], paths: [/workspace/a/**], time: {days: [mon]}, effect: deny") == FileRules(
        unreadable=("/workspace/a",)
    )


def test_without_kernel_enforcement_there_are_no_file_rules() -> None:
    assert load_policy(rules("id: a, tools: [read], effect: allow", head="version: 1\n"), "p").file_rules is None


def test_a_pattern_that_denies_is_refused_with_its_line_and_two_ways_out() -> None:
    deny = "id: env, tools: [read], paths: ['/workspace/**/.env'], effect: deny"
    assert problem(rules(deny)) == (
        "policy.yaml:4: rules[0].paths[0]: the kernel cannot enforce patterns; name directories, such as "
        "/workspace/secrets/**, or set enforcement: gateway in rule 'env', so that it applies to the file tools only"
    )
    assert file_rules(f"{deny}, enforcement: gateway") == FileRules()


@pytest.mark.parametrize("condition", ["argv: [[git, push]]", "when: command != ''", "unless: {argv: [[git, diff]]}"])
def test_a_line_that_is_denied_or_asked_about_is_refused_unless_the_rule_accepts_reading(condition: str) -> None:
    push = f"id: push, tools: [execute], {condition}, effect: ask"
    assert "policy.yaml:4: rules[0].effect: the kernel does not see a command's arguments" in problem(rules(push))
    assert file_rules(f"{push}, enforcement: reading") is not None


def test_more_paths_than_the_sandbox_takes_are_refused_at_load() -> None:
    paths = ", ".join(f"/workspace/{number:0100}/**" for number in range(100))
    rule = f"id: many, tools: [read], paths: [{paths}], effect: deny"
    assert "policy.yaml:2: enforcement: the paths and programs of the rules take" in problem(rules(rule))


def test_gvisor_is_refused() -> None:
    text = rules("id: a, tools: [read], effect: allow", head=HEAD + "sandbox: {runtime: runsc}\n")
    assert "sandbox.runtime: gVisor has no Landlock" in problem(text)


def test_an_operator_who_asks_for_it_has_it_for_every_tenant() -> None:
    operator = HEAD + "rules: []\n"
    tenant = rules("id: a, tools: [read], paths: [/workspace/**], effect: allow", head="version: 1\n")
    document = load_document(operator, "operator.yaml")
    assert load_policy(tenant, "tenant.yaml", document).file_rules == FileRules(readable=("/workspace",))
    pattern = rules("id: a, tools: [read], paths: ['/**/k'], effect: deny", head="version: 1\n")
    assert problem(pattern, operator).startswith("tenant.yaml:3: rules[0].paths[0]: the kernel cannot enforce patterns")


@pytest.mark.parametrize(
    "operator, reason",
    [
        (
            "version: 1\nrules: [{id: env, tools: [read], paths: ['/**/.env'], effect: deny, reason: r}]\n",
            "the kernel cannot enforce patterns; name directories, such as /workspace/secrets/**",
        ),
        (
            "version: 1\nrules: [{id: push, tools: [execute], argv: [[git, push]], effect: ask, reason: r}]\n",
            "the kernel does not see a command's arguments, so only reading the line can enforce rule 'push'",
        ),
        ("version: 1\nrules: []\nsandbox: {runtime: runsc}\n", "gVisor has no Landlock"),
    ],
)
def test_a_tenant_who_asks_for_it_learns_what_of_the_operators_policy_does_not_fit(operator: str, reason: str) -> None:
    asks = rules("id: a, tools: [read], effect: allow")
    where = "tenant.yaml:2: enforcement: the operator's policy does not fit enforcement: kernel: "
    assert problem(asks, operator).startswith(where + reason)
    silent = rules("id: a, tools: [read], effect: allow", head="version: 1\n")
    assert load_policy(silent, "tenant.yaml", load_document(operator, "operator.yaml")).file_rules is None


@pytest.mark.parametrize("tools, enforcement", [("execute", "gateway"), ("read", "reading"), ("connect", "gateway")])
def test_a_rule_accepts_only_what_can_enforce_it(tools: str, enforcement: str) -> None:
    text = rules(f"id: a, tools: [{tools}], effect: allow, enforcement: {enforcement}")
    assert "enforcement is gateway for a rule about file tools, and reading for one about execute" in problem(text)


@pytest.mark.parametrize(
    "command, verdict",
    [
        ("git status > /etc/passwd", "allow"),
        ("git diff | tee anything", "deny"),
        ("git status; x=$(date); git diff $x", "deny"),
        ("git push", "deny"),
    ],
)
def test_a_line_is_judged_for_its_programs_alone(command: str, verdict: str) -> None:
    policy = load_policy(
        rules(
            "id: files, tools: [read], paths: [/workspace/**], effect: allow",
            "id: git, tools: [execute], argv: [[git, [status, diff]]], effect: allow",
        ),
        "policy.yaml",
    )
    assert policy.judge("execute", {"command": command}).verdict == verdict


def test_rules_on_files_do_not_make_an_opaque_line_deniable() -> None:
    files = "id: files, tools: [read, write], paths: [/workspace/a/**], effect: deny"
    anything = "id: any, tools: [execute], effect: allow"
    line = {"command": 'eval "$x"'}
    assert load_policy(rules(files, anything), "p").judge("execute", line).verdict == "allow"
    assert load_policy(rules(files, anything, head="version: 1\n"), "p").judge("execute", line).verdict == "deny"
    push = "id: push, tools: [execute], argv: [[git, push]], effect: deny, enforcement: reading"
    assert load_policy(rules(files, anything, push), "p").judge("execute", line).verdict == "deny"


def test_each_rule_says_what_enforces_it() -> None:
    document = load_document(
        rules(
            "id: look, tools: [read], paths: [/workspace/**], effect: allow",
            "id: part, tools: [write], paths: ['/workspace/*.py'], effect: allow",
            "id: env, tools: [read], paths: ['/**/.env'], effect: deny, enforcement: gateway",
            "id: list, tools: [ls], effect: allow",
            "id: git, tools: [execute], argv: [[git]], effect: allow",
            "id: push, tools: [execute], argv: [[git, push]], effect: allow",
        ),
        "p",
    )
    made = file_rules_of(list(scoped_rules(document)))
    assert {rule.id: enforcement_of(rule, made) for rule in document.rules} == {
        "look": "kernel",
        "part": "gateway",
        "env": "gateway",
        "list": "gateway",
        "git": "kernel",
        "push": "reading",
    }
    assert enforcement_of(document.rules[0], None) == "gateway"
