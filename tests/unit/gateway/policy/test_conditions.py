"""What a rule is about: ask and unless, sizes, times, hosts, expressions, placeholders, and rules in shadow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.policy import Policy, PolicyDocument, load_policy
from gateway.policy.conditions import _MATCHES, NAMES, Call, compile_conditions, compile_rule
from gateway.policy.decision import Facts, RuleLimit
from gateway.policy.document import Condition, Rule
from gateway.policy.expressions import ExpressionError
from gateway.policy.judge import compile_grants
from gateway.policy.narrow import narrow_rule, rule_as_yaml
from gateway.policy.parts import cut


def document(*rules: Mapping[str, Any], **fields: Any) -> PolicyDocument:
    """A document of these rules; ids and reasons are filled in."""
    written = [{"id": f"r{place}", "reason": "why", "effect": "allow", **rule} for place, rule in enumerate(rules)]
    return PolicyDocument.model_validate_json(json.dumps({"version": 1, "rules": written, **fields}))


def policy(*rules: Mapping[str, Any], **fields: Any) -> Policy:
    return Policy(document(*rules, **fields))


def said(judge: Policy, command: str, facts: Facts | None = None) -> tuple[str, str]:
    decision = judge.judge("execute", {"command": command}, facts)
    return decision.verdict, decision.rule


RUN = {"tools": ["execute"], "argv": [["*"]]}
READ = {"tools": ["read"], "paths": ["/workspace/**"]}
WRITE = {"tools": ["write"], "paths": ["/workspace/**"]}
CONNECT = {"tools": ["connect"]}


def test_ask_is_stricter_than_allow_and_laxer_than_deny_and_says_what_is_asked_about() -> None:
    push = {"tools": ["execute"], "argv": [["git", "push"]], "effect": "ask"}
    judge = policy(RUN, push, READ, CONNECT, {"tools": ["execute"], "argv": [["rm"]], "effect": "deny"})
    decision = judge.judge("execute", {"command": "ls; git push origin main"})
    assert (decision.verdict, decision.rule, decision.asked) == ("ask", "r1", ("git push origin main",))
    assert said(judge, "git push; rm x") == ("deny", "r4")
    assert said(judge, "git push; curl http://x -o /etc/x") == ("deny", "default-deny")


def test_an_ask_that_only_might_match_asks_about_what_is_allowed_and_allows_nothing_itself() -> None:
    push = {"tools": ["execute"], "argv": [["mytool", "push"]], "effect": "ask"}
    assert said(policy(push), "mytool pus*") == ("deny", "default-deny")
    assert said(policy(push, RUN), "mytool pus*") == ("ask", "r0")
    assert said(policy(push, RUN), "mytool $what") == ("ask", "r0")
    assert said(policy(push, RUN), 'mytool "$what"') == ("ask", "r0")
    assert said(policy(push, RUN), "mytool x*") == ("allow", "r1")


def test_the_files_that_a_known_program_names_are_judged_by_the_path_rules() -> None:
    judge = policy(RUN, READ, {"tools": ["write"], "paths": ["/workspace/out/**"]})
    assert said(judge, "cat a") == ("allow", "r0")
    assert said(judge, "cat /etc/passwd") == ("deny", "default-deny")
    assert said(judge, "cp a out/b") == ("allow", "r0")
    assert said(judge, "cp a b") == ("deny", "default-deny")
    assert said(judge, "cd /etc && cat passwd") == ("deny", "default-deny")
    assert said(judge, "tee out/x < a") == ("allow", "r0")
    secret = {"tools": ["read"], "paths": ["/workspace/secret/**"], "effect": "deny"}
    assert said(policy(RUN, READ, secret), "cat secret/key") == ("deny", "r2")
    assert said(policy(RUN, READ, secret), "grep -r x .") == ("deny", "r2")
    assert said(policy({"tools": ["execute"]}, secret), "cat secret/key") == ("deny", "r1")
    assert said(policy({"tools": ["execute"]}, secret), "cat /etc/passwd") == ("allow", "r0")


def test_everything_below_a_directory_is_allowed_only_by_a_rule_for_all_of_it() -> None:
    top = {"tools": ["read"], "paths": ["/workspace/*"]}
    assert said(policy(RUN, top), "cat a") == ("allow", "r0")
    assert said(policy(RUN, top), "grep -r x src") == ("deny", "default-deny")
    assert said(policy(RUN, READ), "grep -r x src") == ("allow", "r0")


def test_an_unknown_file_needs_a_rule_for_every_path_and_none_that_tightens_some() -> None:
    secret = {"tools": ["read"], "paths": ["/workspace/secret/**"], "effect": "deny"}
    every = {"tools": ["read"]}
    assert said(policy(RUN, READ), 'cat "$f"') == ("deny", "opaque")
    assert said(policy(RUN, every), 'cat "$f"') == ("allow", "r0")
    assert said(policy(RUN, every, secret), 'cat "$f"') == ("deny", "opaque")
    assert said(policy(RUN, every, secret, opaque="ask"), 'cat "$f"') == ("ask", "opaque")
    assert said(policy({"tools": ["execute"]}, secret), 'cat "$f"') == ("deny", "opaque")


@pytest.mark.parametrize(
    "host,port,verdict",
    [
        ("pypi.org", 443, "allow"),
        ("PyPI.org.", 443, "allow"),
        ("pypi.org", 80, "deny"),
        ("a.b.example.com", 1, "allow"),
        ("example.com", 1, "deny"),
        ("evil-example.com", 1, "deny"),
        ("pypi.org.evil.com", 443, "deny"),
        ("p\u0443pi.org", 443, "deny"),
        ("user@pypi.org", 443, "deny"),
        ("pypi.org\0", 443, "deny"),
        ("127.0.0.1", 80, "deny"),
        ("2130706433", 80, "deny"),
        ("0x7f.1", 80, "deny"),
        ("[::ffff:7f00:1]", 80, "deny"),
        ("pypi.org", "443", "deny"),
        ("pypi.org", True, "deny"),
        (None, 443, "deny"),
    ],
)
def test_connections_are_judged_by_the_one_spelling_of_a_host(host: object, port: object, verdict: str) -> None:
    judge = policy({"tools": ["connect"], "hosts": ["pypi.org:443", "*.example.com"]})
    assert judge.judge("connect", {"host": host, "port": port}).verdict == verdict


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "0177.1", "127.1", "[::ffff:7f00:1]"])
def test_a_denied_address_is_denied_in_all_its_spellings(host: str) -> None:
    judge = policy(CONNECT, {"tools": ["connect"], "hosts": ["127.0.0.1"], "effect": "deny"})
    assert judge.judge("connect", {"host": host, "port": 80}).rule == "r1"


def test_hosts_that_a_command_names_are_judged_when_it_connects_and_its_files_by_its_line() -> None:
    judge = policy(RUN, {"tools": ["connect"], "hosts": ["pypi.org"]})
    assert said(judge, "curl https://pypi.org/simple") == ("allow", "r0")
    assert said(judge, 'curl "https://$host/"') == ("allow", "r0")
    assert said(judge, "curl https://evil.com/") == ("allow", "r0")
    assert judge.judge("connect", {"host": "pypi.org", "port": 443}).rule == "r1"
    assert judge.judge("connect", {"host": "evil.com", "port": 443}).rule == "default-deny"
    judge = policy(RUN, {"tools": ["connect"]}, {"tools": ["read_file"], "paths": ["/workspace/**"], "effect": "deny"})
    assert said(judge, "curl https://pypi.org/simple") == ("allow", "r0")
    assert said(judge, "curl file:///workspace/a") == ("deny", "opaque")
    assert said(judge, 'curl "$url"') == ("deny", "opaque")


def test_an_unless_excepts_for_sure_for_rules_that_tighten_and_maybe_for_rules_that_loosen() -> None:
    judge = policy({**RUN, "unless": {"argv": [["mytool", "drop"]]}})
    assert said(judge, "mytool keep") == ("allow", "r0")
    assert said(judge, "mytool drop") == ("deny", "default-deny")
    assert said(judge, "mytool $x") == ("deny", "default-deny")
    judge = policy(RUN, {**RUN, "effect": "deny", "unless": {"argv": [["mytool", "keep"]]}})
    assert said(judge, "mytool keep") == ("allow", "r0")
    assert said(judge, "mytool drop") == ("deny", "r1")
    assert said(judge, "mytool $x") == ("deny", "r1")
    judge = policy({**READ, "unless": {"paths": ["/workspace/**/.env"]}})
    assert judge.judge("read_file", {"path": "/workspace/a"}).verdict == "allow"
    assert judge.judge("read_file", {"path": "/workspace/b/.env"}).verdict == "deny"


def test_a_general_allow_with_an_exception_does_not_wave_opaque_lines_through() -> None:
    judge = policy({"tools": ["execute"], "unless": {"argv": [["rm"]]}})
    assert said(judge, "ls") == ("allow", "r0")
    assert said(judge, "rm x") == ("deny", "default-deny")
    assert said(judge, "ls ${x:=$(rm x)}") == ("deny", "default-deny")
    assert said(judge, "ls ${x@P}") == ("deny", "opaque")


def test_sizes_are_bytes_of_utf8_and_an_unknown_size_is_never_small() -> None:
    judge = policy({**WRITE, "size_bytes": {"up_to": 4}}, RUN, READ)
    assert judge.judge("write_file", {"path": "/workspace/a", "content": "éé"}).verdict == "allow"
    assert judge.judge("write_file", {"path": "/workspace/a", "content": "ééé"}).verdict == "deny"
    assert judge.judge("edit_file", {"path": "/workspace/a", "new_text": "12345"}).verdict == "deny"
    assert judge.judge("write_file", {"path": "/workspace/a", "content": 5}).verdict == "deny"
    assert said(judge, "echo x > a")[0] == "deny"
    large = {**WRITE, "size_bytes": {"over": 4}, "effect": "deny"}
    assert policy(WRITE, large).judge("write_file", {"path": "/workspace/a", "content": "12345"}).rule == "r1"


@pytest.mark.parametrize(
    "window,at,verdict",
    [
        ({"since": "09:00", "until": "17:00"}, "2026-11-20T09:00:00+00:00", "allow"),
        ({"since": "09:00", "until": "17:00"}, "2026-11-20T17:00:00+00:00", "deny"),
        ({"since": "09:00", "until": "17:00", "zone": "Europe/Berlin"}, "2026-11-20T08:30:00+00:00", "allow"),
        ({"since": "22:00", "until": "06:00"}, "2026-11-20T23:00:00+00:00", "allow"),
        ({"since": "22:00", "until": "06:00"}, "2026-11-20T05:59:00+00:00", "allow"),
        ({"since": "22:00", "until": "06:00"}, "2026-11-20T12:00:00+00:00", "deny"),
        ({"days": ["fri"], "since": "22:00", "until": "06:00"}, "2026-11-21T01:00:00+00:00", "allow"),
        ({"days": ["sat"], "since": "22:00", "until": "06:00"}, "2026-11-21T01:00:00+00:00", "deny"),
        ({"days": ["sat", "sun"]}, "2026-11-21T01:00:00+00:00", "allow"),
        ({"days": ["mon"]}, "2026-11-21T01:00:00+00:00", "deny"),
    ],
)
def test_a_time_window_is_of_its_zone_and_belongs_to_the_day_it_begins_on(
    window: dict[str, Any], at: str, verdict: str
) -> None:
    facts = Facts(at=datetime.fromisoformat(at))
    judge = policy({**READ, "time": window})
    assert judge.judge("read_file", {"path": "/workspace/a"}, facts).verdict == verdict


@pytest.mark.parametrize(
    "when,verdict",
    [
        ("path.startsWith('/workspace/src')", "allow"),
        ("path.matches(r'^/workspace/(src|lib)/')", "allow"),
        ("tenant == 'acme' && thread == 't1' && run == 'run_1' && agent == 'coder'", "allow"),
        ("now.getHours() == 3 && now < timestamp('2027-01-01T00:00:00Z')", "allow"),
        ("has(args.offset) && args.offset < 10", "allow"),
        ("args.offset > 10", "deny"),
        ("args.missing == 1", "deny"),
        ("argv[0] == 'ls'", "deny"),
        ("args.offset", "deny"),
        ("args.big.contains('x')", "deny"),
        ("args.deep.a.a.a.a.a.a.a.a == 1", "deny"),
    ],
)
def test_an_expression_must_be_true_and_an_error_denies(when: str, verdict: str) -> None:
    judge = policy({**READ, "when": when})
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    arguments = {"path": "/workspace/src/a", "offset": 5, "big": "x" * 100_000, "deep": deep}
    facts = Facts("acme", "t1", "run_1", "coder", datetime(2026, 11, 21, 3, tzinfo=UTC))
    assert judge.judge("read_file", arguments, facts).verdict == verdict


def test_an_error_of_an_expression_denies_by_its_rule_whatever_else_allows() -> None:
    judge = policy(READ, {**READ, "when": "args.missing == 1"})
    decision = judge.judge("read_file", {"path": "/workspace/a"})
    assert (decision.verdict, decision.rule) == ("deny", "r1")
    assert "missing" in decision.reason
    assert judge.judge("read_file", {"path": "/etc/a"}).rule == "default-deny"
    in_exception = policy({**READ, "unless": {"when": "args.missing == 1"}})
    assert in_exception.judge("read_file", {"path": "/workspace/a"}).rule == "r0"
    assert in_exception.judge("read_file", {"path": "/workspace/a"}).verdict == "deny"


def test_argv_is_there_for_literal_words_only() -> None:
    judge = policy({**RUN, "when": "argv.all(w, !w.startsWith('-'))"})
    assert said(judge, "mytool a b") == ("allow", "r0")
    assert said(judge, "mytool -x") == ("deny", "default-deny")
    assert said(judge, "mytool $x") == ("deny", "r0")


@pytest.mark.parametrize(
    "when", ["size(command) < 1000", "size(args.x) == 10", "tool == 'execute' && size(args.x) == 10", "size(argv) == 1"]
)
def test_arguments_are_looked_at_once_however_many_parts_a_line_has(when: str) -> None:
    class Counted(list[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            return super().__iter__()

    x = Counted([1] * 10)
    line = ";".join(f"c{number}" for number in range(50))
    judge = policy({"tools": ["execute"], "when": when}, {"tools": ["execute"], "effect": "deny", "when": f"!({when})"})
    assert judge.judge("execute", {"command": line, "x": x}).verdict == "allow"
    assert x.looks == 1


def test_each_part_is_seen_as_it_is_whichever_came_before() -> None:
    line = "cat /workspace/a; ls b c; cat /workspace/d e"
    parts = cut("execute", {"command": line, "timeout_s": 5}).parts
    call = Call("execute", {"command": line, "timeout_s": 5}, Facts(tenant="t"))

    def holds(when: str) -> list[str]:
        one, found = compile_conditions(Condition(when=when)), []
        for part in parts:
            with contextlib.suppress(ExpressionError):  # it names what this part does not have
                found += [part.shown] * one.is_true(part, call)
        return found

    commands = ["cat /workspace/a", "ls b c", "cat /workspace/d e"]
    for _ in range(2):
        assert [part.shown for part in parts if part.kind == "command"] == commands
        assert holds("tool == 'execute' && args.timeout_s == 5") == commands
        assert holds("size(argv) == 3 && args.timeout_s == 5") == commands[1:]
        assert holds("size(argv) == 3 && argv.exists(word, argv[0] == 'ls')") == commands[1:2]
        files = [part.shown for part in parts if part.tool == "read_file" and part.path is not None]
        assert len(files) == 3
        assert holds("path.startsWith('/workspace/') && tool == 'read_file'") == files
        assert holds("args.path == path && tenant == 't' && tool == 'read_file'") == files
        assert holds("path == '/workspace/d'") == files[1:2]


def test_a_general_rule_of_execute_sees_its_own_arguments_when_it_judges_a_file() -> None:
    judge = policy({"tools": ["execute"], "when": "tool == 'execute' && args.timeout_s < 10.0"})
    assert judge.judge("execute", {"command": "cat /etc/x > /tmp/y", "timeout_s": 5.0}).verdict == "allow"
    assert judge.judge("execute", {"command": "cat /etc/x > /tmp/y", "timeout_s": 50.0}).verdict == "deny"


@pytest.mark.parametrize(
    "word,text,verdict",
    [
        ({"path": ["/workspace/src/**"]}, "src/a.py", "allow"),
        ({"path": ["/workspace/src/**"]}, "./src//a.py", "allow"),
        ({"path": ["/workspace/src/**"]}, "src/../../etc/passwd", "deny"),
        ({"path": ["/workspace/src/**"]}, "/etc/passwd", "deny"),
        ({"path": ["/workspace/**"]}, "-rf", "deny"),
        ({"path": ["/workspace/src/**"]}, "src/*", "deny"),
        ({"path": ["/workspace/src/**"]}, "$x", "deny"),
        ({"number": {"least": 1, "most": 10}}, "10", "allow"),
        ({"number": {"least": 1, "most": 10}}, "11", "deny"),
        ({"number": {"least": 1, "most": 10}}, "010", "deny"),
        ({"number": {"least": 1, "most": 10}}, "'1 '", "deny"),
        ({"matches": "v[0-9]+"}, "v12", "allow"),
        ({"matches": "v[0-9]+"}, "v12x", "deny"),
        ({"matches": "v[0-9]+"}, "'v1\n'", "deny"),
        ({"end": True}, "", "allow"),
        ({"end": True}, "x", "deny"),
        ({"end": True}, "$x", "deny"),
    ],
)
def test_a_placeholder_is_exactly_what_it_says(word: dict[str, Any], text: str, verdict: str) -> None:
    judge = policy({"tools": ["execute"], "argv": [["mytool", word]]})
    assert said(judge, f"mytool {text}")[0] == verdict


@pytest.mark.parametrize(
    "word,text",
    [
        ({"path": ["/workspace/src/**"]}, "src/../src/a"),
        ({"path": ["/workspace/src/**"]}, "$x"),
        ({"number": {"least": 1, "most": 10}}, "010"),
        ({"end": True}, "$x"),
        ({"matches": "v[0-9]+"}, "v*"),
    ],
)
def test_a_deny_rule_takes_what_might_be_the_placeholder_for_it(word: dict[str, Any], text: str) -> None:
    judge = policy(RUN, {"tools": ["execute"], "argv": [["mytool", word]], "effect": "deny"})
    assert said(judge, f"mytool {text}") == ("deny", "r1")


def test_a_relative_path_is_seen_from_where_the_command_runs() -> None:
    judge = policy(
        {"tools": ["execute"], "argv": [["mytool", {"path": ["/workspace/src/**"]}], ["cd"]]},
    )
    assert said(judge, "cd src && mytool a")[0] == "allow"
    assert said(judge, "cd /etc && mytool src/a")[0] == "deny"


def test_a_rule_in_shadow_decides_nothing_and_says_what_it_would_have_decided() -> None:
    shadow = {"tools": ["execute"], "argv": [["mytool"]], "effect": "deny", "mode": "shadow"}
    decision = policy(RUN, shadow).judge("execute", {"command": "mytool x"})
    assert (decision.verdict, decision.rule, decision.would_be) == ("allow", "r0", ("deny", "r1"))
    assert [(match.rule, match.shadow) for match in decision.trace] == [("r0", False), ("r1", True)]
    assert policy(RUN, shadow).judge("execute", {"command": "other"}).would_be is None
    allowing = policy({**RUN, "mode": "shadow"}).judge("execute", {"command": "mytool"})
    assert (allowing.verdict, allowing.would_be) == ("deny", ("allow", "r0"))


def test_a_rule_in_shadow_never_makes_a_line_opaque() -> None:
    shadow = {"tools": ["read"], "paths": ["/workspace/s/**"], "effect": "deny", "mode": "shadow"}
    decision = policy({"tools": ["execute"]}, shadow).judge("execute", {"command": 'cat "$f"'})
    assert (decision.verdict, decision.would_be) == ("allow", ("deny", "opaque"))
    decision = policy({"tools": ["execute"]}, shadow).judge("execute", {"command": "eval x"})
    assert (decision.verdict, decision.would_be) == ("allow", ("deny", "opaque"))


def test_an_error_in_shadow_is_in_the_trace_and_nowhere_else() -> None:
    judge = policy(READ, {**READ, "when": "args.missing == 1", "mode": "shadow"})
    decision = judge.judge("read_file", {"path": "/workspace/a"})
    assert decision.verdict == "allow"
    assert [(match.rule, match.effect, match.shadow) for match in decision.trace][1] == ("r1", "deny", True)


@pytest.mark.parametrize("per, seconds", [("minute", 60), ("hour", 3600), ("day", 86_400)])
def test_a_rate_counts_in_the_period_that_it_names(per: str, seconds: int) -> None:
    decision = policy({**READ, "rate": {"calls": 3, "per": per}}).judge("read_file", {"path": "/workspace/a"})
    assert decision.limits == (RuleLimit("r0", 3, seconds),)


def test_limits_of_every_rule_by_which_a_call_passes_must_be_taken() -> None:
    judge = policy(
        {**RUN, "rate": {"calls": 10, "per": "minute"}},
        {**READ, "at_once": 2},
        {"tools": ["execute"], "argv": [["nothing"]], "rate": {"calls": 1, "per": "day"}},
        {"tools": ["execute"], "argv": [["rm"]], "effect": "deny"},
    )
    decision = judge.judge("execute", {"command": "cat a; cat b"})
    assert decision.limits == (RuleLimit("r0", 10, 60), RuleLimit("r1", at_once=2))
    assert judge.judge("execute", {"command": "rm x"}).limits == ()


PUSH = {"tools": ["execute"], "argv": [["git", "push"]], "effect": "ask"}


def test_a_grant_answers_exactly_what_was_asked_and_nothing_near_it() -> None:
    judge = policy(PUSH, CONNECT, {"tools": ["execute"], "argv": [["rm"]], "effect": "deny"}, READ, RUN)
    arguments = {"command": "git push origin main"}
    rule = narrow_rule("execute", arguments, judge.judge("execute", arguments))
    assert rule is not None
    grants = compile_grants([rule])
    assert judge.judge("execute", arguments, grants=grants).verdict == "allow"
    for near in ("git push origin main -f", "git push origin", "git push origin ma*", "cd x && git push origin main"):
        assert judge.judge("execute", {"command": near}, grants=grants).verdict == "ask", near
    assert judge.judge("execute", {"command": "git push origin main; rm x"}, grants=grants).verdict == "deny"
    assert "end: true" in rule_as_yaml(rule)
    assert Rule.model_validate_json(rule.model_dump_json()) == rule


def test_a_path_that_looks_like_a_glob_is_granted_as_that_path_only() -> None:
    judge = policy({**WRITE, "effect": "ask"})
    arguments = {"path": "/workspace/a*[b]?", "content": "x"}
    rule = narrow_rule("write_file", arguments, judge.judge("write_file", arguments))
    assert rule is not None
    grants = compile_grants([rule])
    assert judge.judge("write_file", arguments, grants=grants).verdict == "allow"
    assert judge.judge("write_file", {**arguments, "path": "/workspace/axbc"}, grants=grants).verdict == "ask"


def test_a_grant_to_write_a_file_is_none_to_remove_it_and_a_removal_is_granted_by_itself_only() -> None:
    judge = policy({**WRITE, "effect": "ask"})
    writing = {"path": "/workspace/a", "content": "x"}
    rule = narrow_rule("write_file", writing, judge.judge("write_file", writing))
    assert rule is not None
    grants = compile_grants([rule])
    assert judge.judge("write_file", writing, grants=grants).verdict == "allow"
    for operation in (
        {"operation": "remove"},
        {"operation": "remove", "recursive": True},
        {"operation": "make_directory"},
    ):
        asked = {"path": "/workspace/a", **operation}
        decision = judge.judge("write_file", asked, grants=grants)
        assert decision.verdict == "ask", operation
        assert narrow_rule("write_file", asked, decision) is None


def test_what_is_granted_besides_the_very_call_is_said_in_the_rule() -> None:
    asks = {"tools": ["execute"], "argv": [["mytool"]], "effect": "ask"}
    judge = policy({**WRITE, "effect": "ask"}, asks, {"tools": ["write_todos"], "effect": "ask"})
    calls = {
        "write_file": {"path": "/workspace/a", "content": "x"},
        "execute": {"command": "mytool x"},
        "write_todos": {"todos": ["x"]},
    }
    rules = {tool: narrow_rule(tool, told, judge.judge(tool, told)) for tool, told in calls.items()}
    said = {tool: rule.reason.partition(",")[0] for tool, rule in rules.items() if rule is not None}
    assert said == {
        "write_file": "an approver allowed writing any content here",
        "execute": "an approver allowed exactly this",
        "write_todos": "an approver allowed this tool with any arguments",
    }
    grants = compile_grants([rule for rule in rules.values() if rule is not None])
    other = {"path": "/workspace/a", "content": "another"}
    assert judge.judge("write_file", other, grants=grants).verdict == "allow"


@pytest.mark.parametrize("command", ["git push; echo x > a", "cd /x && git push", "git push origin ''"])
def test_what_one_rule_cannot_say_is_not_proposed(command: str) -> None:
    judge = policy(PUSH, {**WRITE, "effect": "ask"}, CONNECT, {"tools": ["execute"], "argv": [["cd"], ["echo"]]}, READ)
    decision = judge.judge("execute", {"command": command})
    assert decision.verdict == "ask"
    assert narrow_rule("execute", {"command": command}, decision) is None
    opaque = policy(opaque="ask").judge("execute", {"command": "eval x"})
    assert opaque.verdict == "ask"
    assert narrow_rule("execute", {"command": "eval x"}, opaque) is None


@pytest.mark.parametrize("command", ["grep -r x .", "cp -r src out", "cat src/*.py", "cat $f"])
def test_an_expression_about_a_path_denies_where_many_paths_are_meant(command: str) -> None:
    policy = load_policy(
        """
version: 1
rules:
  - {id: any, tools: [execute], effect: allow, reason: all}
  - {id: files, tools: [read, write], effect: allow, reason: all}
  - {id: no-keys, tools: [read], when: 'path.endsWith(".key")', effect: deny, reason: keys}
""",
        "policy.yaml",
    )
    assert policy.judge("execute", {"command": "cat a.txt"}).verdict == "allow"
    assert policy.judge("execute", {"command": "cat a.key"}).verdict == "deny"
    assert policy.judge("execute", {"command": command}).verdict == "deny"
    assert policy.judge("grep", {"path": "/workspace", "pattern": "x"}).verdict == "deny"


def test_every_condition_is_compiled_and_none_is_ignored() -> None:
    assert {*_MATCHES, "when"} == set(Condition.model_fields)
    rule = Rule(id="r", tools=("read_file",), effect="allow", reason="r")
    for name in Condition.model_fields:
        alone = rule.model_copy(update={name: ()})
        more = Condition.given(alone) - NAMES
        assert more == ({name} if name not in NAMES else set())
    assert compile_rule(rule.model_copy(update={"when": "1 == 1"}), 0).more is not None
