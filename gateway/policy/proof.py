"""What a policy file promises of itself: examples, each judged by its rule alone, and tests, by the whole policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.policy.decision import Facts
from gateway.policy.document import Example, PolicyDocument, Rule
from gateway.policy.fields import CONNECT, moment
from gateway.policy.judge import Policy
from gateway.policy.scoped_rule import all_rules
from gateway.policy.yaml_lines import Path, YamlReading

_NOTHING = PolicyDocument(version=1)
_SHOWN_CHARS = 200


@dataclass(frozen=True)
class Outcome:
    """How one example or test came out: `kind` is match, not_match or test.

    `rule` is whose example it is, or the rule that a test names ("" for none).
    """

    kind: str
    line: int
    rule: str
    call: str
    passed: bool
    message: str = ""


class ExampleCall(NamedTuple):
    """A call that a file tells of in an example or a test. `shown` is for people."""

    tool: str
    arguments: dict[str, Any]
    facts: Facts
    shown: str


def prove_examples(document: PolicyDocument, reading: YamlReading) -> Iterator[tuple[Path, Outcome]]:
    """Yield the outcome of each example of a file, with its place.

    The files that programs name are other rules' business, and a time window is taken to be open.
    """
    for path, rule in all_rules(document):
        if rule.examples.match or rule.examples.not_match:
            alone = Policy(_NOTHING.model_copy(update={"rules": (_at_any_time(rule),)}), judges_effects=False)
            for kind, examples in (("match", rule.examples.match), ("not_match", rule.examples.not_match)):
                for number, example in enumerate(examples):
                    place = (*path, "examples", kind, number)
                    message = _untrue(alone, rule, example, matches=kind == "match")
                    yield place, Outcome(kind, reading.line(place), rule.id, _shown(example), not message, message)


def prove_tests(document: PolicyDocument, reading: YamlReading, policy: Policy) -> Iterator[tuple[Path, Outcome]]:
    """Yield the outcome of each test of a file, with its place."""
    for number, test in enumerate(document.tests):
        place: Path = ("tests", number)
        decision = policy.judge(test.tool, test.args, Facts(at=moment(test.at)))
        message = ""
        if decision.verdict != test.verdict or test.rule not in (None, decision.rule):
            expected = test.verdict if test.rule is None else f"{test.verdict} by {test.rule}"
            message = f"expected {expected}, and it is {decision.verdict} by {decision.rule}: {decision.reason}"
        call = f"{test.tool} {_shown(test.args)}"
        yield place, Outcome("test", reading.line(place), test.rule or "", call, not message, message)


def example_calls(document: PolicyDocument) -> Iterator[ExampleCall]:
    """Yield the calls that a file tells of; what an example leaves open is judged as of now."""
    for _, rule in all_rules(document):
        for example in (*rule.examples.match, *rule.examples.not_match):
            for tool in rule.tools:
                yield ExampleCall(tool, example_arguments(tool, example), Facts(), f"{tool}: {_shown(example)}")
    for test in document.tests:
        yield ExampleCall(test.tool, test.args, Facts(at=moment(test.at)), f"{test.tool}: {_shown(test.args)}")


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
    unless = rule.unless if rule.unless is None or rule.unless.time is None else None
    return rule.model_copy(update={"mode": "enforce", "time": None, "unless": unless})


def _untrue(alone: Policy, rule: Rule, example: Example, *, matches: bool) -> str:
    shown = repr(example)[:_SHOWN_CHARS]
    for tool in rule.tools:
        decision = alone.judge(tool, example_arguments(tool, example))
        found = decision.rule == rule.id and decision.verdict == rule.effect
        if matches and not found:
            form = "; write HOST:PORT" if tool == CONNECT and decision.rule != "default-deny" else ""
            return f"{shown} does not match rule {rule.id!r} for {tool}: {decision.reason}{form}"
        if not matches and found:
            return f"{shown} matches rule {rule.id!r} for {tool}, and must not"
    return ""


def _shown(example: Example) -> str:
    return example if isinstance(example, str) else " ".join(f"{name}={value}" for name, value in example.items())
