"""Examples and tests run one by one, in a file that loads and in one that does not for their sake."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.policy import PolicyError
from gateway.policy.fields import moment
from gateway.policy.loading import Outcome, example_arguments, read_policy
from gateway.policy_versions.difference import example_calls

FILE = """\
version: 1
groups:
  g:
    rules:
      - id: grouped
        tools: [execute]
        argv: [[ls]]
        effect: allow
        reason: r
        examples: {match: [ls -l, git status]}
use: [g]
rules:
  - id: look
    tools: [read_file]
    paths: [/workspace/**]
    effect: allow
    reason: r
    examples:
      match:
        - /workspace/a
        - /etc/passwd
      not_match: [/tmp/x]
tests:
  - {tool: read_file, args: {path: /workspace/a}, verdict: allow, rule: look}
  - {tool: read_file, args: {path: /workspace/a}, verdict: deny}
  - {tool: read_file, args: {path: /workspace/a}, verdict: allow, rule: grouped}
  - {tool: execute, args: {command: rm x}, verdict: deny, rule: default-deny}
"""


def outcomes(text: str) -> tuple[Outcome, ...]:
    return read_policy(text, "test").outcomes


def test_each_example_and_each_test_has_its_own_outcome_and_line() -> None:
    assert [(found.kind, found.line, found.call, found.passed) for found in outcomes(FILE)] == [
        ("match", 10, "ls -l", True),
        ("match", 10, "git status", False),
        ("match", 20, "/workspace/a", True),
        ("match", 21, "/etc/passwd", False),
        ("not_match", 22, "/tmp/x", True),
        ("test", 24, "read_file path=/workspace/a", True),
        ("test", 25, "read_file path=/workspace/a", False),
        ("test", 26, "read_file path=/workspace/a", False),
        ("test", 27, "execute command=rm x", True),
    ]


def test_what_fails_says_what_it_is_instead() -> None:
    messages = {found.line: found.message for found in outcomes(FILE) if not found.passed}
    assert "look" in messages[21]
    assert "expected deny, and it is allow by look" in messages[25]
    assert "expected allow by grouped" in messages[26]


def test_a_test_is_judged_at_its_time() -> None:
    text = """\
version: 1
rules:
  - {id: a, tools: [ls], effect: allow, reason: r, time: {days: [mon]}}
tests:
  - {tool: ls, args: {path: /x}, verdict: allow, at: "2026-11-23T10:00:00+00:00"}
  - {tool: ls, args: {path: /x}, verdict: allow, at: "2026-11-24T10:00:00+00:00"}
"""
    assert [found.passed for found in outcomes(text)] == [True, False]


def test_whatever_else_is_wrong_is_refused() -> None:
    with pytest.raises(PolicyError) as refused:
        read_policy(FILE.replace("version: 1", "version: 2"), "test")
    assert [problem.field for problem in refused.value.errors] == ["version"]


def test_the_calls_that_a_file_tells_of_are_those_of_examples_and_tests() -> None:
    calls = list(example_calls(read_policy(FILE, "test").document))
    assert len(calls) == 9
    assert {"command": "rm x"} in [call.arguments for call in calls]


def test_an_example_stands_for_a_whole_call() -> None:
    assert example_arguments("execute", "ls") == {"command": "ls"}
    assert example_arguments("connect", "pypi.org:443") == {"host": "pypi.org", "port": 443}
    assert example_arguments("grep", "/a") == {"path": "/a", "pattern": "*"}
    assert example_arguments("write_file", {"path": "/a", "content": "x"}) == {"path": "/a", "content": "x"}


def test_a_moment_without_a_zone_is_in_utc_and_what_is_none_says_how_to_write_it() -> None:
    assert moment("2026-11-21T03:00") == datetime(2026, 11, 21, 3, tzinfo=UTC)
    assert moment(None) is None
    with pytest.raises(ValueError, match="write it as 2026"):
        moment("tomorrow")
