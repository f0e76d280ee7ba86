"""Which rules came near a call, and by which one condition they missed it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.policy.decision import Facts
from gateway.policy.document import PolicyDocument
from gateway.policy.explain import LIMIT_NEAR, Near, near_misses
from gateway.policy.judge import Policy

FRIDAY_NIGHT = Facts(at=datetime(2026, 11, 20, 23, 5, tzinfo=UTC))


def near(rule: dict[str, Any], tool: str, **arguments: Any) -> list[Near]:
    return near_of([{"id": "r", "tools": [tool], "effect": "allow", "reason": "x", **rule}], tool, **arguments)


def near_of(rules: list[dict[str, Any]], tool: str, **arguments: Any) -> list[Near]:
    document = PolicyDocument.model_validate({"version": 1, "rules": _tuples(rules)})
    return near_misses(Policy(document), tool, arguments, FRIDAY_NIGHT)


def _tuples(value: Any) -> Any:
    """Lists as a file is read: the models are strict."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {name: _tuples(item) for name, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "argv, command, why",
    [
        ([["git", ["status", "diff"]]], "git push", "the second word 'push' is not one of status, diff"),
        ([["git", "status"]], "git", "the command ends where 'status' is expected"),
        ([["git", "status", {"end": True}]], "git status -s", "the third word '-s' is one too many"),
        ([["head", "-n", {"number": {"least": 1, "most": 9}}]], "head -n 50", "is not {number: 1 to 9}"),
        ([["cat", {"path": ["/workspace/**"]}]], "cat /etc/passwd", "is not {path: /workspace/**}"),
        ([["ls", "-l"], ["git", "log"]], "git push", "the second word 'push' is not 'log'"),
    ],
)
def test_a_command_says_which_word_it_was(argv: list[Any], command: str, why: str) -> None:
    (miss, *_) = near({"argv": argv}, "execute", command=command)
    assert miss.condition == "argv"
    assert why in miss.why


def test_a_path_says_which_glob_was_closest() -> None:
    (miss,) = near({"paths": ["/tmp/**", "/workspace/src/**"]}, "read_file", path="/workspace/docs/a")
    assert miss == Near(
        "r",
        "allow",
        "/workspace/docs/a",
        "paths",
        "/workspace/src/** does not match /workspace/docs/a (nor do 1 others)",
    )


@pytest.mark.parametrize(
    "condition, why",
    [
        ({"time": {"days": ["mon"], "since": "09:00", "until": "17:00"}}, "Fri 23:05 is outside of mon 09:00 to 17:00"),
        ({"size_bytes": {"up_to": 3}}, "4 bytes are more than 3"),
        ({"size_bytes": {"over": 9}}, "4 bytes are not over 9"),
        ({"when": "tenant == 'other'"}, "tenant == 'other' is false"),
        ({"unless": {"paths": ["/workspace/a"]}}, "its exception (paths) holds"),
    ],
)
def test_the_other_conditions_say_what_they_saw(condition: dict[str, Any], why: str) -> None:
    (miss,) = near({"paths": ["/workspace/*"], **condition}, "write_file", path="/workspace/a", content="1234")
    assert why in miss.why


def test_a_host_says_which_pattern_was_closest() -> None:
    (miss,) = near({"hosts": ["pypi.org", "*.example.com"]}, "connect", host="evil.com", port=443)
    assert "*.example.com does not match evil.com:443" in miss.why


@pytest.mark.parametrize(
    "rule, arguments, why",
    [
        ({"hosts": ["10.0.0.0/16", "pypi.org"]}, {"host": "10.1.0.1"}, "10.0.0.0/16 does not match 10.1.0.1:443"),
        ({"hosts": ["[fd00::1]:443"]}, {"host": "fd00::2"}, "[fd00::1]:443 does not match [fd00::2]:443"),
        ({"hosts": ["pypi.org:80"]}, {"host": "pypi.org"}, "pypi.org:80 does not match pypi.org:443"),
        ({"methods": ["GET", "HEAD"]}, {"host": "a.b", "method": "put", "path": "/"}, "PUT is not GET|HEAD"),
        ({"methods": ["GET"]}, {"host": "a.b"}, "GET needs a request that the gateway sees"),
        ({"url_paths": ["/a/*"]}, {"host": "a.b", "method": "GET", "path": "/a/../b?c"}, "/b is not /a/*"),
        ({"url_paths": ["/a/*"]}, {"host": "a.b", "method": "GET", "path": "/a%2Fb"}, "a path that all servers read"),
        ({"hosts": ["a.b"], "unless": {"methods": ["GET"]}}, {"host": "a.b"}, "its exception (methods) holds"),
    ],
)
def test_a_connection_says_what_did_not_match(rule: dict[str, Any], arguments: dict[str, Any], why: str) -> None:
    (miss,) = near(rule, "connect", port=443, **arguments)
    assert why in miss.why


def test_names_are_not_near_addresses() -> None:
    assert not near({"hosts": ["pypi.org", "*.0.1.example"]}, "connect", host="10.0.0.1", port=443)
    assert not near({"hosts": ["10.0.0.0/8"]}, "connect", host="pypi.org", port=443)


def test_a_rule_that_failed_in_two_conditions_was_not_near() -> None:
    assert not near({"paths": ["/workspace/src/**"], "when": "false"}, "read_file", path="/workspace/docs/a")


def test_rules_about_other_programs_and_other_tools_are_not_near() -> None:
    assert not near({"argv": [["ls"]]}, "execute", command="git push")
    assert not near_of([{"id": "r", "tools": ["glob"], "effect": "allow", "reason": "x"}], "read_file", path="/a")


def test_a_rule_that_matches_is_not_near() -> None:
    assert not near({"paths": ["/workspace/**"]}, "read_file", path="/workspace/a")


def test_the_nearest_come_first_and_never_more_than_a_few() -> None:
    rules = [
        {"id": f"r{place}", "tools": ["execute"], "effect": "allow", "reason": "x", "argv": [["git", f"{place}"]]}
        for place in range(20)
    ]
    closest = {"id": "closest", "tools": ["execute"], "effect": "allow", "reason": "x", "argv": [["git", "push", "x"]]}
    found = near_of([*rules, closest], "execute", command="git push")
    assert len(found) == LIMIT_NEAR
    assert found[0].rule == "closest"


@pytest.mark.parametrize("arguments", [{}, {"path": 5}, {"path": "\0"}, {"path": "/x", "content": b"\xff"}])
def test_arguments_that_cannot_be_judged_have_no_near_rules(arguments: dict[str, Any]) -> None:
    assert near({"paths": ["/workspace/**"]}, "write_file", **arguments) == []


def test_where_the_kernel_enforces_rules_on_files_a_command_is_near_to_none_of_them() -> None:
    rule = {"id": "r", "tools": ["read_file"], "paths": ["/workspace/src/**"], "effect": "allow", "reason": "x"}
    reading = PolicyDocument.model_validate(_tuples({"version": 1, "rules": [rule]}))
    kernel = reading.model_copy(update={"enforcement": "kernel"})
    command = {"command": "cat docs/a"}
    assert [miss.rule for miss in near_misses(Policy(reading), "execute", command)] == ["r"]
    assert near_misses(Policy(kernel), "execute", command) == []
    assert near_misses(Policy(reading, kernel), "execute", command) == []
