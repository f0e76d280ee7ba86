"""Rules that contradict each other do not load: one that a single deny rule covers whole; what is narrower does."""

from __future__ import annotations

import json
import random
import time
from math import inf
from typing import Any

import pytest
import yaml

from gateway.policy import PolicyError, load_policy
from gateway.policy.cover import Covering, covers
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.layers import ScopedRule, scoped_rules


def rule(id_: str, effect: str, *tools: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "tools": list(tools), "effect": effect, "reason": "r", **more}


def _covering(denials: list[ScopedRule], limit_comparisons: float = inf) -> Covering[ScopedRule]:
    covering: Covering[ScopedRule] = Covering(limit_comparisons)
    for denial in denials:
        for tool in denial.rule.tools:
            covering.keep(tool, denial.rule, denial)
    return covering


def load(*rules: dict[str, Any], **sections: Any) -> None:
    load_policy(yaml.safe_dump({"version": 1, **sections, "rules": list(rules)}, sort_keys=False), "test")


NO_PUSH = rule("no", "deny", "execute", argv=[["git", "push"]])
NO_ETC = rule("no", "deny", "read", "write", paths=["/srv/**", "/etc/**"])
NO_HOST = rule("no", "deny", "connect", hosts=["*.example.com"])


@pytest.mark.parametrize(
    "deny, other",
    [
        (NO_PUSH, rule("a", "allow", "execute", argv=[["git", "push", "origin"]])),
        (NO_PUSH, rule("a", "ask", "execute", argv=[["git", ["push"], {"end": True}]])),
        (NO_PUSH, rule("a", "allow", "execute", argv=[["git", "push"]], when="size(argv) < 4")),
        (NO_PUSH, rule("a", "allow", "execute", argv=[["git", "push"]], unless={"argv": [["git", "push", "-f"]]})),
        (
            rule("no", "deny", "execute", argv=[[["git", "hg"], "*"]]),
            rule("a", "allow", "execute", argv=[["hg", "in"]]),
        ),
        (rule("no", "deny", "execute"), rule("a", "allow", "execute", argv=[["ls"]])),
        (NO_ETC, rule("a", "allow", "read_file", paths=["/etc/*.conf"])),
        (NO_ETC, rule("a", "ask", "write", paths=["/etc", "/srv/a"], size_bytes={"up_to": 5})),
        (rule("no", "deny", "read", paths=["/**"]), rule("a", "allow", "read")),
        (NO_HOST, rule("a", "allow", "connect", hosts=["a.b.example.com:443", "*.x.example.com"])),
        (rule("no", "deny", "write_todos"), rule("a", "allow", "write_todos")),
        (
            rule("no", "deny", "read", paths=["/etc/**"], when="agent == 'a'", unless={"paths": ["/etc/b"]}),
            rule("a", "allow", "read", paths=["/etc/c/**"], when="agent == 'a'", unless={"paths": ["/etc/b"]}),
        ),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_what_one_deny_rule_covers_whole_does_not_load(
    deny: dict[str, Any], other: dict[str, Any], *, turned: bool
) -> None:
    rules = (deny, other) if turned else (other, deny)
    with pytest.raises(PolicyError) as raised:
        load(*rules)
    (problem,) = raised.value.errors
    place = rules.index(other)
    assert problem.field == f"rules[{place}].effect"
    line = 3 if turned else next(at for at, text in enumerate(_lines(rules), 1) if "'no'" in text)
    assert f"rule 'a' can never {other['effect']}" in problem.message
    assert f"'no' in line {line} denies all of it" in problem.message


def _lines(rules: tuple[dict[str, Any], ...]) -> list[str]:
    return yaml.safe_dump({"version": 1, "rules": list(rules)}, sort_keys=False).splitlines()


@pytest.mark.parametrize(
    "rules",
    [
        (NO_PUSH, rule("a", "allow", "execute", argv=[["git"]])),
        (NO_PUSH, rule("a", "allow", "execute", argv=[["git", "push"], ["git", "pull"]])),
        ({**NO_PUSH, "when": "size(argv) > 2"}, rule("a", "allow", "execute", argv=[["git", "push", "x"]])),
        (
            {**NO_PUSH, "unless": {"argv": [["git", "push", "x"]]}},
            rule("a", "allow", "execute", argv=[["git", "push"]]),
        ),
        ({**NO_PUSH, "mode": "shadow"}, rule("a", "allow", "execute", argv=[["git", "push"]])),
        (NO_PUSH, rule("a", "allow", "execute", argv=[["git", "push"]], mode="shadow")),
        (NO_ETC, rule("a", "allow", "read", paths=["/etc/x", "/workspace/x"])),
        (rule("no", "deny", "write", paths=["/etc/**"]), rule("a", "allow", "read", "write", paths=["/etc/x"])),
        ({**NO_ETC, "time": {"days": ["sun"]}}, rule("a", "allow", "read", paths=["/etc/x"])),
        (NO_HOST, rule("a", "allow", "connect", hosts=["example.com"])),
        (
            NO_PUSH,
            rule("pull", "deny", "execute", argv=[["git", "pull"]]),
            rule("a", "allow", "execute", argv=[["git", ["push", "pull"]]]),
        ),
    ],
)
def test_a_denial_that_is_narrower_or_has_conditions_contradicts_nothing(rules: tuple[dict[str, Any], ...]) -> None:
    load(*rules)


def test_the_rules_of_groups_in_use_count() -> None:
    group = {"g": {"rules": [NO_PUSH]}}
    allowed = rule("a", "allow", "execute", argv=[["git", "push", "x"]])
    load(allowed, groups=group)
    with pytest.raises(PolicyError, match="denies all of it"):
        load(allowed, groups=group, use=["g"])


def _compiled(rules: list[dict[str, Any]]) -> list[Any]:
    return list(scoped_rules(PolicyDocument.model_validate_json(json.dumps({"version": 1, "rules": rules}))))


def test_the_index_finds_what_comparing_each_with_each_does() -> None:
    chance = random.Random(5)
    words = ["git", "*", "hg", ["git", "hg"], ["git"]]
    seconds: list[Any] = [
        "push",
        "*",
        ["push", "pull"],
        ["push"],
        {"number": {"least": 1, "most": 9}},
        "5",
        {"end": True},
    ]
    globs = ["/**", "/a", "/a/**", "/a/*", "/a/b", "/a/b/**", "/*/b", "/**/b", "/a/b/*.py", "/"]
    hosts = ["example.com", "*.example.com", "a.example.com", "a.example.com:443", "*.com", "10.0.0.1"]

    def some(of: list[Any]) -> list[Any]:
        return chance.sample(of, chance.randint(1, 2))

    def made(number: int, effect: str) -> dict[str, Any]:
        kind = chance.randrange(4)
        if kind == 0:
            argv = [[word, *some(seconds)[: chance.randint(0, 1)]] for word in some(words)]
            return rule(f"r{number}", effect, "execute", argv=argv)
        if kind == 1:
            return rule(f"r{number}", effect, *some(["read_file", "write_file", "ls"]), paths=some(globs))
        if kind == 2:
            return rule(f"r{number}", effect, "connect", hosts=some(hosts))
        return rule(f"r{number}", effect, chance.choice(["execute", "read_file", "connect"]))

    denials = _compiled([made(number, "deny") for number in range(40)])
    kept = _covering(denials)
    found = 0
    for placed in _compiled([made(number, "allow") for number in range(600)]):
        one: Rule = placed.rule
        for tool in one.tools:
            plainly = {denial.name for denial in denials if tool in denial.rule.tools and covers(denial.rule, one)}
            assert {denial.name for denial in kept.over(tool, one)} == plainly, one
            found += len(plainly)
    assert found > 100


def test_rules_made_to_be_compared_with_each_other_are_compared_up_to_a_limit() -> None:
    alike = [rule(f"d{number}", "deny", "read", paths=[f"/w/*d{number}/**/x"]) for number in range(2000)]
    denials = _covering(_compiled(alike), 20_000)
    others = [
        one.rule for one in _compiled([rule(f"a{n}", "allow", "read", paths=[f"/w/*a{n}/**/x"]) for n in range(2000)])
    ]
    started_s = time.thread_time()
    assert not any(list(denials.over("read_file", other)) for other in others)
    one_by_one_s = time.thread_time() - started_s
    started_s = time.thread_time()
    for denial in alike[:20]:
        made = Rule.model_validate_json(json.dumps(denial))
        assert not any(covers(made, other) for other in others)
    # 40,000 comparisons take longer than all 4,000,000 would have been, cut off at 20,000.
    assert one_by_one_s < 2 * (time.thread_time() - started_s)
