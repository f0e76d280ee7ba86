"""Proof of a policy: how each example and each test of a file came out when it was loaded (policy_tests.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.policy.decision import Facts
from gateway.policy.document import Example, PolicyDocument
from gateway.policy.loading import PolicyText
from gateway.policy.policy_tests import example_arguments, moment
from gateway.policy.scoped_rule import all_rules
from gateway.policy.yaml_lines import Path


@dataclass(frozen=True)
class ExampleCall:
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
    """One example or test: `kind` is match, not_match or test.

    `rule` is whose example it is, or the rule that a test names ("" for none).
    """

    kind: str
    line: int
    rule: str
    call: str
    passed: bool
    message: str = ""


def prove(text: PolicyText) -> list[Outcome]:
    """Return how each example and each test of a file came out, in the order of the file."""
    return sorted(_outcomes(text), key=lambda outcome: outcome.line)


def example_calls(document: PolicyDocument) -> Iterator[ExampleCall]:
    """Yield the calls that a file tells of; what an example leaves open is judged as of now."""
    for _, rule in all_rules(document):
        for example in (*rule.examples.match, *rule.examples.not_match):
            for tool in rule.tools:
                yield ExampleCall(tool, example_arguments(tool, example), f"{tool}: {_shown(example)}")
    for test in document.tests:
        yield ExampleCall(test.tool, test.args, f"{test.tool}: {_shown(test.args)}", moment(test.at))


def _outcomes(text: PolicyText) -> Iterator[Outcome]:
    for path, rule in all_rules(text.document):
        for kind, examples in (("match", rule.examples.match), ("not_match", rule.examples.not_match)):
            for number, example in enumerate(examples):
                yield _outcome(text, kind, (*path, "examples", kind, number), rule.id, _shown(example))
    for number, test in enumerate(text.document.tests):
        yield _outcome(text, "test", ("tests", number), test.rule or "", f"{test.tool} {_shown(test.args)}")


def _outcome(text: PolicyText, kind: str, place: Path, rule: str, call: str) -> Outcome:
    wrong = text.problem(place) or text.problem((*place, "at"))
    return Outcome(kind, text.reading.line(place), rule, call, wrong is None, wrong.message if wrong else "")


def _shown(example: Example) -> str:
    if isinstance(example, str):
        return example
    return " ".join(f"{name}={value}" for name, value in example.items())
