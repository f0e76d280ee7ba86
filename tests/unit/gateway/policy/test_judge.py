"""Decisions."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import STARTER_POLICY, Policy, PolicyDocument, load_policy
from gateway.policy.decision import Match
from gateway.policy.parts import read_programs
from gateway.policy.programs.call import LIMIT_USES
from gateway.policy.shell import parse_line
from tests.cpu_time import costs_at_most
from tests.examples import examples


def policy(*rules: Mapping[str, Any], **fields: Any) -> Policy:
    """A policy of these rules; ids and reasons are filled in."""
    written = [
        {"id": f"rule-{place}", "reason": f"reason {place}", "effect": "allow", "tools": ["execute"], **rule}
        for place, rule in enumerate(rules)
    ]
    return Policy(PolicyDocument.model_validate_json(json.dumps({"version": 1, "rules": written, **fields})))


def verdict(judge: Policy, command: str) -> tuple[str, str]:
    """Verdict and deciding rule of a command line."""
    decision = judge.judge("execute", {"command": command})
    return decision.verdict, decision.rule


GIT = {"argv": [["git", ["status", "diff"]], ["ls"]]}
FILES = {"id": "files", "tools": ["read"]}


@pytest.mark.parametrize(
    "line",
    [
        "cd src && git status && echo done",
        "git status; [ $? = 0 ] || exit 1",
        "set -e; true; printf '%s\\n' \"$x\"; git status; pwd",
        "export CI=1; git status",
        'if test -n "$x"; then git status; else false; fi',
    ],
)
def test_builtins_that_do_nothing_need_no_allow_beside_a_command_that_has_one(line: str) -> None:
    assert verdict(policy(GIT, enforcement="kernel"), line) == ("allow", "rule-0")


@pytest.mark.parametrize(
    "line,rule",
    [
        ("echo alone", "default-deny"),
        ("git status; echo *", "default-deny"),
        ("git status; echo $x", "default-deny"),
        ("git status; frob x; echo y", "default-deny"),
        ('git status; echo "$(frob x)"', "default-deny"),
        ("git status; echo `frob x`", "default-deny"),
        ("git status; cd x && frob y", "default-deny"),
        ("git status; ./echo x", "default-deny"),
        ("git status; /tmp/echo x", "default-deny"),
        ("git status; pushd x", "default-deny"),
        ("sh -c 'echo x'", "default-deny"),
        ("git status; printf -v x y", "opaque"),
        ("git status; export PATH=x", "opaque"),
        ("git status; echo() { frob x; }; echo", "opaque"),
        ("git status; cd secrets", "rule-1"),
        ("git status; echo x > out", "files-none"),
    ],
)
def test_other_commands_beside_one_that_is_allowed_need_an_allow_of_their_own(line: str, rule: str) -> None:
    judge = policy(
        GIT,
        {"argv": [["cd", "secrets"]], "effect": "deny"},
        {"id": "files", "tools": ["read"]},
        {"id": "files-none", "tools": ["write"], "effect": "deny"},
    )
    assert verdict(judge, line) == ("deny", rule)


def test_a_line_that_runs_nothing_is_for_the_rules_about_all_commands() -> None:
    for line in ("# nothing", "x=1", "# a\n# b\n"):
        assert verdict(policy({}), line) == ("allow", "rule-0")
        assert verdict(policy(GIT), line) == ("deny", "default-deny")
        assert verdict(policy({}, {"effect": "deny"}), line) == ("deny", "rule-1")


def test_nothing_matched_means_deny() -> None:
    judge = policy()
    assert verdict(judge, "ls") == ("deny", "default-deny")
    decision = judge.judge("read_file", {"path": "/workspace/a"})
    assert (decision.verdict, decision.rule) == ("deny", "default-deny")
    assert "read_file: /workspace/a" in decision.reason


@pytest.mark.parametrize("command", ["git status", "git diff a b", "ls", "ls -la /", "git 'status'", "ls *"])
def test_an_argv_prefix_allows_commands_that_start_with_it(command: str) -> None:
    assert verdict(policy(GIT, FILES), command) == ("allow", "rule-0")


@pytest.mark.parametrize(
    "command", ["git", "git push", "git *", "gits status", "lsx", "/bin/ls", "./ls", "git -C x push", "'git status'"]
)
def test_an_argv_prefix_allows_nothing_else(command: str) -> None:
    assert verdict(policy(GIT), command)[0] == "deny"


@pytest.mark.parametrize("command", ["git -C x diff", "git --no-pager diff", "git -P status", "/usr/bin/git -C x diff"])
def test_the_options_of_git_itself_change_no_subcommand(command: str) -> None:
    judge = policy({"argv": [[["git", "/usr/bin/git"], ["status", "diff"]]]}, FILES)
    assert verdict(judge, command) == ("allow", "rule-0")
    assert verdict(judge, command.replace("diff", "push").replace("status", "push"))[0] == "deny"


@pytest.mark.parametrize(
    "command",
    ["npm publish", "npm --silent publish", "npm --prefix x publish", "npm --prefix=x -s publish",
     'npm -w "$x" publish', "npm $x publish", "npx npm -s publish"],
)  # fmt: skip
def test_options_before_a_subcommand_hide_it_from_no_deny_rule(command: str) -> None:
    judge = policy({"argv": [["npm"], ["npx", "npm"]]}, {"argv": [["npm", "publish"]], "effect": "deny"})
    assert verdict(judge, command) == ("deny", "rule-1")
    assert verdict(judge, "npm --prefix sub test publish")[0] == "allow"


def test_what_a_wrapper_runs_is_allowed_by_a_rule_that_names_both() -> None:
    judge = policy({"argv": [["uv", "run", ["pytest", "ruff"]], ["timeout", "5", "make"]]})
    assert verdict(judge, "uv run pytest -q && timeout 5 make") == ("allow", "rule-0")
    assert verdict(judge, "uv run -- pytest")[0] == "deny"
    assert verdict(judge, "uv run rm x")[0] == "deny"
    assert verdict(judge, "pytest")[0] == "deny"
    assert verdict(judge, "timeout 6 make")[0] == "deny"
    assert verdict(policy({"argv": [["uv", "run"]]}), "uv run rm x")[0] == "deny"
    assert verdict(policy({"argv": [["uv", "run"], ["pytest"]]}), "uv run pytest")[0] == "allow"
    assert verdict(policy({"argv": [["uv", "run", "*"]]}), "uv run frob x")[0] == "allow"


def test_a_pattern_takes_no_option_unless_it_begins_with_a_dash() -> None:
    assert verdict(policy({"argv": [["npm", {"matches": "[a-z-]+"}]]}), "npm test")[0] == "allow"
    assert verdict(policy({"argv": [["npm", {"matches": "[a-z-]+"}]]}), "npm -g")[0] == "deny"
    assert verdict(policy({"argv": [["npm", {"matches": "-[a-z]"}]]}), "npm -g")[0] == "allow"
    denies = policy({"argv": [["npm"]]}, {"argv": [["npm", {"matches": "[a-z-]+"}]], "effect": "deny"})
    assert verdict(denies, "npm -g") == ("deny", "rule-1")


def test_a_star_in_argv_is_exactly_one_word_that_is_known() -> None:
    judge = policy({"argv": [["npm", "*", "test"]]})
    assert verdict(judge, "npm run test")[0] == "allow"
    assert verdict(judge, "npm test")[0] == "deny"
    assert verdict(judge, "npm run all test")[0] == "deny"
    assert verdict(judge, "npm * test")[0] == "deny"


def test_each_command_of_a_line_needs_its_own_rule() -> None:
    judge = policy({"argv": [["ls"]]}, {"argv": [["cat"]]}, FILES)
    assert verdict(judge, "cat a | ls") == ("allow", "rule-0")
    assert verdict(judge, "cat a; ls; rm b") == ("deny", "default-deny")


def test_the_strictest_wins_in_the_name_of_the_first_such_rule() -> None:
    judge = policy(
        {"argv": [["git"]]},
        {"argv": [["git", "push"]], "effect": "deny"},
        {"argv": [["git", "*", "-f"]], "effect": "deny"},
        FILES,
    )
    assert verdict(judge, "git status") == ("allow", "rule-0")
    assert verdict(judge, "git push -f") == ("deny", "rule-1")
    assert verdict(judge, "git pull -f && git push") == ("deny", "rule-1")


@pytest.mark.parametrize(
    "command",
    [
        *["curl x", "/usr/bin/curl x", "./curl x", "ls; curl x", "ls | curl x", "timeout 5 curl x", "env /bin/curl x"],
        *["sh -c 'curl x'", "xargs curl", "find . -exec curl {} +", "busybox curl x", "nohup sh -c 'ls && curl'"],
    ],
)
def test_a_deny_rule_finds_its_program_by_path_and_in_wrappers(command: str) -> None:
    judge = policy({"argv": [["*"]]}, {"argv": [["curl"]], "effect": "deny"})
    assert verdict(judge, command) == ("deny", "rule-1")


def test_a_deny_rule_takes_a_file_name_pattern_for_the_word_it_might_become() -> None:
    judge = policy({"argv": [["git"]]}, {"argv": [["git", "push"]], "effect": "deny"}, FILES)
    assert verdict(judge, "git pus*") == ("deny", "rule-1")
    assert verdict(judge, "git * x") == ("deny", "rule-1")
    assert verdict(judge, "git status -- *.py") == ("allow", "rule-0")
    assert verdict(judge, "xargs git") == ("deny", "rule-1")


def test_a_deny_rule_about_a_wrapper_holds_and_an_allow_rule_about_one_allows_only_what_it_wraps() -> None:
    assert verdict(policy({"argv": [["*"]]}, {"argv": [["env"]], "effect": "deny"}), "env ls") == ("deny", "rule-1")
    assert verdict(policy({"argv": [["env"]]}), "env ls") == ("deny", "default-deny")
    assert verdict(policy({"argv": [["env"]]}, {"argv": [["ls"]]}, FILES), "env ls") == ("allow", "rule-1")


def test_a_rule_without_argv_is_about_every_command_line_opaque_ones_too() -> None:
    assert verdict(policy({}), "echo $(ls) > /x") == ("allow", "rule-0")
    assert verdict(policy({}, {"effect": "deny"}), "ls") == ("deny", "rule-1")
    assert verdict(policy({}, {"effect": "deny"}), "echo $x") == ("deny", "rule-1")
    assert verdict(policy({"effect": "deny"}, opaque="allow"), "echo $x") == ("deny", "rule-0")


def test_an_opaque_line_gets_what_the_policy_says_for_opaque() -> None:
    for word, verdict_of_line in (("deny", "deny"), ("ask", "ask"), ("allow", "allow")):
        assert verdict(policy(GIT, FILES, opaque=word), "ls ${x/y/z}") == (verdict_of_line, "opaque")
    assert "opaque: a ${...} is not" in policy(GIT).judge("execute", {"command": "ls ${x/y/z}"}).reason
    assert policy(GIT, opaque="ask").judge("execute", {"command": "ls ${x/y/z}"}).asked == ("the whole line",)


def test_where_an_argv_is_denied_an_opaque_line_is_not_waved_through_by_a_rule_without_argv() -> None:
    judge = policy({}, {"argv": [["curl"]], "effect": "deny"})
    assert verdict(judge, "ls") == ("allow", "rule-0")
    assert verdict(judge, "c=curl; $c x") == ("deny", "opaque")


def test_a_denied_program_that_is_seen_in_an_opaque_line_denies_it() -> None:
    judge = policy({}, {"argv": [["curl"]], "effect": "deny"}, opaque="allow")
    assert verdict(judge, "echo $(curl x)") == ("deny", "rule-1")
    assert verdict(judge, "for f in a; do sh -c 'curl x'; done") == ("deny", "rule-1")
    assert verdict(judge, "echo ${x/y/z}") == ("allow", "opaque")


LS = {"argv": [["ls"], ["cat"], ["cd"]]}
WRITE = {"tools": ["write_file"], "paths": ["/workspace/out/**"]}
READ = {"tools": ["read_file", "ls"], "paths": ["/workspace/**"]}


@pytest.mark.parametrize(
    "command,expected",
    [
        ("ls > out/a", "allow"),
        ("ls > /workspace/out/a", "allow"),
        ("ls > ./out//a", "allow"),
        ("> out/a", "allow"),
        ("ls > /dev/null 2>&1", "allow"),
        ("cat < a", "allow"),
        ("ls > a", "deny"),
        ("ls > /tmp/a", "deny"),
        ("ls > out/../a", "deny"),
        ("ls > out/link/../a", "deny"),
        ("cat < /etc/passwd", "deny"),
        ("ls > /dev/tcp/a/1", "deny"),
        ("cd out && ls > a", "allow"),
        ("cd src && ls > a", "deny"),
        ("cd out && ls > /workspace/out/a", "allow"),
    ],
)
def test_redirects_are_judged_as_file_reads_and_writes(command: str, expected: str) -> None:
    assert verdict(policy(LS, WRITE, READ), command)[0] == expected


def test_a_redirect_to_a_device_is_opaque_whatever_paths_are_allowed() -> None:
    """In bash /dev/tcp/host/port is a connection, not a file."""
    judge = policy(LS, {"tools": ["write_file"], "paths": ["/**"]}, FILES)
    assert verdict(judge, "ls > /etc/x") == ("allow", "rule-0")
    assert verdict(judge, "ls > /dev/tcp/host/80") == ("deny", "opaque")


def test_a_denied_path_denies_a_redirect_to_it_even_where_any_command_may_run() -> None:
    judge = policy({}, {"tools": ["write_file"], "paths": ["/workspace/.git/**"], "effect": "deny"})
    assert verdict(judge, "echo x > .git/config") == ("deny", "rule-1")
    assert verdict(judge, "echo x > /var/x") == ("allow", "rule-0")


def test_path_rules_are_judged_on_the_path() -> None:
    judge = policy(
        {"tools": ["read_file", "ls"], "paths": ["/workspace/**"]},
        {"tools": ["read_file"], "paths": ["/workspace/**/*.key"], "effect": "deny"},
    )
    assert judge.judge("ls", {"path": "/workspace"}).rule == "rule-0"
    assert judge.judge("read_file", {"path": "/workspace/a"}).verdict == "allow"
    assert judge.judge("read_file", {"path": "/workspace/a/b.key"}).rule == "rule-1"
    assert judge.judge("ls", {"path": "/workspace/a/b.key"}).verdict == "allow"
    assert judge.judge("write_file", {"path": "/workspace/a"}).verdict == "deny"


def test_a_search_is_denied_from_where_it_would_meet_what_it_must_not() -> None:
    judge = policy(
        {"tools": ["grep"], "paths": ["/workspace/**"]},
        {"tools": ["grep"], "paths": ["/workspace/keys/**"], "effect": "deny"},
    )
    assert judge.judge("grep", {"path": "/workspace", "pattern": "x"}).rule == "rule-1"
    assert judge.judge("grep", {"path": "/workspace/src", "pattern": "x"}).verdict == "allow"


def test_the_trace_lists_every_rule_that_matched_a_part() -> None:
    judge = policy({"argv": [["mytool"], ["cat"]]}, {"argv": [["mytool", "push"]], "effect": "deny"}, WRITE, READ)
    decision = judge.judge("execute", {"command": "cat a > out/a; mytool push"})
    assert decision.trace == (
        Match("cat a", "rule-0", "allow"),
        Match("cat: read /workspace/a", "rule-3", "allow"),
        Match("mytool push", "rule-0", "allow"),
        Match("mytool push", "rule-1", "deny"),
        Match("> /workspace/out/a", "rule-2", "allow"),
    )


def test_what_a_decision_says_can_always_be_stored_as_text() -> None:
    decision = policy().judge("read_file", {"path": "/workspace/\udc80" + "x" * 5000})
    assert decision.reason.encode()
    assert len(decision.reason) < 500


def test_the_version_names_the_content() -> None:
    assert policy(GIT).version == policy(GIT).version
    assert policy(GIT).version != policy(LS).version
    assert policy(GIT).version.startswith("policy_")
    assert len(policy(GIT).digest) == 64


@pytest.mark.parametrize("path", ["/workspace", "/workspace/a/b", "/tmp", "/tmp/x"])
@pytest.mark.parametrize("tool", ["ls", "read_file", "write_file", "edit_file", "glob", "grep"])
def test_the_starter_policy_lets_file_tools_work_in_workspace_and_tmp(tool: str, path: str) -> None:
    assert load_policy(STARTER_POLICY, "starter").judge(tool, {"path": path, "pattern": "*"}).verdict == "allow"


@pytest.mark.parametrize("command", ["rm -rf /", "echo $(ls) > /x & wait", "\0", "", "while true; do :; done"])
def test_the_starter_policy_lets_execute_run_any_command(command: str) -> None:
    assert verdict(load_policy(STARTER_POLICY, "starter"), command) == ("allow", "any-command")


def test_the_starter_policy_lets_file_tools_reach_nothing_else() -> None:
    judge = load_policy(STARTER_POLICY, "starter")
    assert judge.judge("read_file", {"path": "/etc/passwd"}).verdict == "deny"
    assert judge.judge("write_file", {"path": "/opt/airlock/x"}).verdict == "deny"


EFFECTS = st.sampled_from(["allow", "deny"])
RULES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "effect": EFFECTS,
                "argv": st.lists(
                    st.lists(
                        st.sampled_from(["ls", "cat", "git", "push", "*", ["a", "b"], "env"]), min_size=1, max_size=2
                    ),
                    min_size=1,
                    max_size=2,
                ),
            }
        ),
        st.fixed_dictionaries({"effect": EFFECTS}),
        st.fixed_dictionaries(
            {
                "effect": EFFECTS,
                "tools": st.lists(st.sampled_from(["read_file", "write_file", "grep"]), min_size=1, max_size=3),
                "paths": st.lists(
                    st.sampled_from(["/workspace/**", "/workspace/*", "/workspace/a", "/**/a", "/tmp/**"]),
                    min_size=1,
                    max_size=2,
                ),
            }
        ),
    ),
    max_size=5,
)
CALLS: list[tuple[str, dict[str, object]]] = [
    *(
        ("execute", {"command": line})
        for line in ["ls", "git push", "ls a; cat b", "env git a", "ls > a", "ls $x", "git *"]
    ),
    *(("read_file", {"path": path}) for path in ["/workspace", "/workspace/a", "/tmp/a/b", "/etc"]),
    *(("grep", {"path": path, "pattern": "x"}) for path in ["/workspace", "/tmp/b"]),
    ("write_file", {"path": "/workspace/a"}),
]


@examples(200)
@given(st.data(), RULES, st.sampled_from(["allow", "deny"]))
def test_the_order_of_rules_never_changes_a_verdict(
    data: st.DataObject, rules: list[dict[str, Any]], opaque: str
) -> None:
    order = data.draw(st.permutations(range(len(rules))))
    written = policy(*rules, opaque=opaque)
    shuffled = policy(*(rules[place] for place in order), opaque=opaque)
    for tool, arguments in CALLS:
        assert written.judge(tool, arguments).verdict == shuffled.judge(tool, arguments).verdict


@examples(200)
@given(RULES, RULES)
def test_another_deny_rule_never_makes_a_policy_laxer(rules: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    before = policy(*rules)
    after = policy(*rules, *({**rule, "effect": "deny"} for rule in more))
    for tool, arguments in CALLS:
        if before.judge(tool, arguments).verdict == "deny":
            assert after.judge(tool, arguments).verdict == "deny"


def test_a_decision_among_a_thousand_rules_costs_far_less_than_a_hundred_times_one_among_ten() -> None:
    def judge(rules: int) -> Policy:
        return policy(
            *(
                {"tools": ["read_file"], "paths": [f"/workspace/dir{place}/**", f"/workspace/**/name{place}/*.py"]}
                for place in range(rules // 2)
            ),
            *({"argv": [["make", f"sub{place}"], [f"program{place}"]]} for place in range(rules // 2)),
        )

    few, many = judge(10), judge(1000)
    for tool, arguments in (
        ("read_file", {"path": "/workspace/a/b/name4/x.py"}),
        ("execute", {"command": "make sub4 -k 'a b'"}),
    ):
        few_s = min(_median_s(few, tool, arguments) for _ in range(5))
        many_s = min(_median_s(many, tool, arguments) for _ in range(5))
        print(f"{tool}: {few_s * 1e6:.0f} us among 10 rules, {many_s * 1e6:.0f} us among 1,000")
        assert many_s < 30 * few_s


def _median_s(judge: Policy, tool: str, arguments: Mapping[str, object]) -> float:
    # The processor's time of this thread: what else runs on the machine is not in it.
    taken_s = []
    for _ in range(500):
        started_s = time.thread_time()
        assert judge.judge(tool, arguments).verdict == "allow"
        taken_s.append(time.thread_time() - started_s)
    return statistics.median(taken_s)


def test_a_tree_that_a_service_removes_is_judged_with_all_that_is_below_it() -> None:
    judge = policy(
        {"id": "project", "tools": ["write"], "paths": ["/workspace/src/**", "/workspace/src"]},
        {"id": "keys", "tools": ["write"], "paths": ["/workspace/src/keys/**"], "effect": "deny"},
        {"id": "one", "tools": ["write"], "paths": ["/workspace/one"]},
        {"id": "small", "tools": ["write"], "paths": ["/tmp/**"], "size_bytes": {"up_to": 10}},
    )

    def removal(path: str, **more: object) -> tuple[str, str]:
        decision = judge.judge("write_file", {"path": path, "operation": "remove", **more})
        return decision.verdict, decision.rule

    assert removal("/workspace/src/a") == removal("/workspace/src/a", recursive=True) == ("allow", "project")
    assert removal("/workspace/src") == ("allow", "project")
    assert removal("/workspace/src", recursive=True) == ("deny", "keys")
    assert removal("/workspace/one") == ("allow", "one")
    assert removal("/workspace/one", recursive=True) == ("deny", "default-deny")
    # It writes no bytes, however large the file is.
    assert removal("/tmp/large") == ("allow", "small")


def test_a_condition_tells_removing_from_writing() -> None:
    judge = policy(
        {"id": "write", "tools": ["write"], "paths": ["/workspace/**"]},
        {
            "id": "keep",
            "tools": ["write"],
            "effect": "deny",
            "when": 'has(args.operation) && args.operation == "remove"',
        },
    )
    assert judge.judge("write_file", {"path": "/workspace/a", "content": "x"}).verdict == "allow"
    assert judge.judge("write_file", {"path": "/workspace/a"}).verdict == "allow"
    assert judge.judge("write_file", {"path": "/workspace/a", "operation": "remove"}).rule == "keep"


@pytest.mark.parametrize("count", [100, 500])
@pytest.mark.parametrize("globs, line_bytes", [(400, 5_900), (1_150, 17_000)])
def test_a_long_line_of_globs_against_many_denies_is_refused_in_time(count: int, globs: int, line_bytes: int) -> None:
    denies = [
        {"id": f"deny-{number}", "tools": ["read"], "paths": [f"/workspace/**/secret{number}*/key?"], "effect": "deny"}
        for number in range(count)
    ]
    judge = policy({"argv": [["cat"]]}, FILES, *denies)
    line = "cat " + " ".join(f"src{number}/*.p{number}?" for number in range(globs))
    assert abs(len(line) - line_bytes) < 500
    assert verdict(judge, line) == ("deny", "too-complex" if globs < LIMIT_USES else "opaque")
    assert costs_at_most(10, lambda: judge.judge("execute", {"command": line}), beside=lambda: read_programs(line))
    assert verdict(judge, "cat *.py a/* b/*.[ch]")[0] == "allow"


def test_many_commands_against_many_denies_are_refused_in_time() -> None:
    denies = [{"argv": [["*", {"matches": f"a[a-z]*{number}"}]], "effect": "deny"} for number in range(500)]
    judge = policy({"argv": [["cat"]]}, FILES, *denies)
    line = "; ".join(f"cat abc{number} def" for number in range(900))
    assert verdict(judge, line) == ("deny", "too-complex")
    assert verdict(judge, "cat b; cat c") == ("allow", "rule-0")


def test_a_refusal_names_the_part_and_what_is_allowed() -> None:
    def reason(command: str) -> str:
        return judge.judge("execute", {"command": command}).reason

    secrets = {"tools": ["read"], "paths": ["/workspace/secrets/**"], "effect": "deny", "reason": "no"}
    writing = {"tools": ["write"], "paths": ["/workspace/**"]}
    judge = policy({"argv": [["cat"], ["git", ["status", "diff"]]]}, FILES, secrets, writing)
    assert reason("cat README.md secrets/k") == "no (cat: read /workspace/secrets/k)"
    assert reason("git push") == "no rule of the policy allows execute: git push. It allows cat, git status, git diff"
    refused = judge.judge("write_file", {"path": "/etc/x", "content": ""}).reason
    assert refused.startswith("no rule of the policy allows write_file: /etc/x. It allows /workspace/**")


def test_a_line_at_the_edge_of_the_budget_is_judged_or_refused_and_never_an_error() -> None:
    # Without argv: the whole line is judged too, after its parts.
    judge = policy(FILES, *({"when": f"size(command) < {9000 + number}"} for number in range(100)))
    lines = (" && ".join([*(f"ls d{number}" for number in range(count)), "git archive x"]) for count in range(200))
    found = [verdict(judge, line) for line in lines]
    assert found[-1] == ("deny", "too-complex")
    assert found[0] != found[-1]


def test_many_files_against_many_globs_of_their_directory_are_refused_in_time() -> None:
    rules = [
        {"tools": ["write"], "paths": [f"/workspace/f{glob}*{number}" for glob in range(500)]} for number in range(10)
    ]
    judge = policy({"argv": [["rm"]]}, FILES, *rules)
    line = "rm -r " + " ".join(f"d{number}" for number in range(900))
    assert verdict(judge, line) == ("deny", "too-complex")
    assert costs_at_most(30, lambda: judge.judge("execute", {"command": line}), beside=lambda: read_programs(line))
    assert verdict(judge, "rm f1a2") == ("allow", "rule-0")


def test_many_global_options_of_git_are_refused_in_time() -> None:
    judge = policy({"argv": [["git", "status"]]}, FILES)
    line = f"git {'-C a ' * 1_400} status"
    assert verdict(judge, line)[0] == "deny"
    assert costs_at_most(5, lambda: judge.judge("execute", {"command": line}), beside=lambda: parse_line(line))
    assert verdict(judge, "git -C a -C b --no-pager status")[0] == "allow"
