"""What a policy file promises of itself: examples, each judged by its rule alone, and tests, by the whole policy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gateway.policy.decision import Facts
from gateway.policy.document import CONNECT, Example, PolicyDocument, PolicyTest, Rule, Unless
from gateway.policy.judge import Policy
from gateway.policy.scoped_rule import all_rules
from gateway.policy.yaml_lines import Path

_NOTHING = PolicyDocument(version=1)
_SHOWN_CHARS = 200


def untrue_examples(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield the places of examples that are untrue, and why.

    The files and hosts that programs name are other rules' business, and a time window is taken to be open.
    """
    for path, rule in all_rules(document):
        if not rule.examples.match and not rule.examples.not_match:
            continue
        alone = Policy(_NOTHING.model_copy(update={"rules": (_at_any_time(rule),)}), judges_effects=False)
        for kind, examples in (("match", rule.examples.match), ("not_match", rule.examples.not_match)):
            for number, example in enumerate(examples):
                message = _untrue(alone, rule, example, matches=kind == "match")
                if message:
                    yield (*path, "examples", kind, number), message


def untrue_tests(document: PolicyDocument, policy: Policy) -> Iterator[tuple[Path, str]]:
    """Yield the places of tests that are untrue, and why."""
    for number, test in enumerate(document.tests):
        try:
            facts = Facts(at=moment(test.at))
        except ValueError as error:
            yield ("tests", number, "at"), str(error)
            continue
        message = _broken(test, policy, facts)
        if message:
            yield ("tests", number), message


def moment(text: str | None) -> datetime | None:
    """Return a moment from ISO 8601, in UTC unless it names a zone. Raises ValueError that says how to write it."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time; write it as 2026-11-21T03:00:00+00:00") from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def example_arguments(tool: str, example: Example) -> dict[str, Any]:
    """Return the arguments of a call that an example stands for."""
    if not isinstance(example, str):
        return dict(example)
    if tool == "execute":
        return {"command": example}
    if tool == CONNECT:
        host, _, port = example.rpartition(":")
        return {"host": host, "port": int(port)} if port.isascii() and port.isdigit() else {"host": example}
    return {"path": example, "pattern": "*"}


def _at_any_time(rule: Rule) -> Rule:
    """Return a rule as it is while its time window is open, and in force."""
    unless: Unless | None = rule.unless if rule.unless is None or rule.unless.time is None else None
    return rule.model_copy(update={"mode": "enforce", "time": None, "unless": unless})


def _untrue(alone: Policy, rule: Rule, example: Example, *, matches: bool) -> str | None:
    shown = repr(example)[:_SHOWN_CHARS]
    for tool in rule.tools:
        decision = alone.judge(tool, example_arguments(tool, example))
        found = decision.rule == rule.id and decision.verdict == rule.effect
        if matches and not found:
            form = "; write HOST:PORT" if tool == CONNECT and decision.rule != "default-deny" else ""
            return f"{shown} does not match rule {rule.id!r} for {tool}: {decision.reason}{form}"
        if not matches and found:
            return f"{shown} matches rule {rule.id!r} for {tool}, and must not"
    return None


def _broken(test: PolicyTest, policy: Policy, facts: Facts) -> str | None:
    decision = policy.judge(test.tool, test.args, facts)
    if decision.verdict == test.verdict and test.rule in (None, decision.rule):
        return None
    expected = test.verdict if test.rule is None else f"{test.verdict} by {test.rule}"
    return f"expected {expected}, and it is {decision.verdict} by {decision.rule}: {decision.reason}"
