"""Proof of a policy: its examples, each judged by its rule alone, and its tests, judged by the whole policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gateway.policy.decision import Facts
from gateway.policy.document import Example, PolicyDocument, PolicyTest, Rule
from gateway.policy.judge import Policy
from gateway.policy.policy_tests import example_arguments, moment
from gateway.policy.reading import PolicyText
from gateway.policy.yaml_lines import Path


@dataclass(frozen=True)
class ToldCall:
    """A call that a file tells of in an example or a test. `shown` is for people; `at` is None for now."""

    tool: str
    arguments: dict[str, Any]
    shown: str
    at: datetime | None = None

    @property
    def facts(self) -> Facts:
        """Return the other facts that the policy is given."""
        return Facts(at=self.at)


@dataclass(frozen=True)
class Outcome:
    """One example or test. `rule` is whose example it is, or the rule that a test names ("" for none)."""

    kind: Literal["match", "not_match", "test"]
    line: int
    rule: str
    call: str
    passed: bool
    message: str = ""


def prove(text: PolicyText, policy: Policy) -> list[Outcome]:
    """Return how each example and each test of a file came out, in the order of the file."""
    outcomes = [*_examples(text), *_tests(text, policy)]
    return sorted(outcomes, key=lambda outcome: outcome.line)


def told_calls(document: PolicyDocument) -> Iterator[ToldCall]:
    """Yield the calls that a file tells of; what an example leaves open is judged as of now."""
    for rule, _ in _all_rules(document):
        for example in (*rule.examples.match, *rule.examples.not_match):
            for tool in rule.tools:
                yield ToldCall(tool, example_arguments(tool, example), f"{tool}: {_shown(example)}")
    for test in document.tests:
        yield ToldCall(test.tool, test.args, f"{test.tool}: {_shown(test.args)}", moment(test.at))


def _examples(text: PolicyText) -> Iterator[Outcome]:
    for rule, path in _all_rules(text.document):
        kinds: tuple[tuple[Literal["match", "not_match"], tuple[Example, ...]], ...] = (
            ("match", rule.examples.match),
            ("not_match", rule.examples.not_match),
        )
        for kind, examples in kinds:
            for number, example in enumerate(examples):
                place: Path = (*path, "examples", kind, number)
                # Loading has judged it; here is nothing but the list of all.
                wrong = text.problem(place)
                line = text.reading.line(place)
                yield Outcome(kind, line, rule.id, _shown(example), wrong is None, wrong.message if wrong else "")


def _tests(text: PolicyText, policy: Policy) -> Iterator[Outcome]:
    for number, test in enumerate(text.document.tests):
        place: Path = ("tests", number)
        message = _test_problem(test, policy)
        call = f"{test.tool} {_shown(test.args)}"
        yield Outcome("test", text.reading.line(place), test.rule or "", call, not message, message)


def _test_problem(test: PolicyTest, policy: Policy) -> str:
    try:
        facts = Facts(at=moment(test.at))
    except ValueError as error:
        return f"at: {error}"
    decision = policy.judge(test.tool, test.args, facts)
    if decision.verdict == test.verdict and test.rule in (None, decision.rule):
        return ""
    expected = test.verdict if test.rule is None else f"{test.verdict} by {test.rule}"
    return f"expected {expected}, and it is {decision.verdict} by {decision.rule}: {decision.reason}"


def _all_rules(document: PolicyDocument) -> Iterator[tuple[Rule, Path]]:
    """Yield all rules with their places, unused groups included."""
    for place, rule in enumerate(document.rules):
        yield rule, ("rules", place)
    for name, group in document.groups.items():
        for place, rule in enumerate(group.rules):
            yield rule, ("groups", name, "rules", place)


def _shown(example: Example) -> str:
    if isinstance(example, str):
        return example
    return " ".join(f"{name}={value}" for name, value in example.items())
