"""Loading a policy: text in, a Policy out, or every problem with its line, its field and what is allowed there.

A file's promises of itself are kept: examples, each judged by its rule alone, and tests, by the whole policy.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from gateway.policy.checks import private_hosts, translated, wrong_places
from gateway.policy.decision import Facts
from gateway.policy.document import Example, PolicyDocument, Rule
from gateway.policy.fields import CONNECT, moment
from gateway.policy.file_rules import check_layers
from gateway.policy.judge import Policy
from gateway.policy.layers import all_rules
from gateway.policy.yaml_lines import Path, Problem, YamlReading, field_of, read_yaml

LIMIT_BYTES = 1024 * 1024
_NOTHING = PolicyDocument(version=1)
_SHOWN_CHARS = 200


class PolicyError(Exception):
    """A policy that cannot be loaded; `errors` has at least one problem, in the order of the file."""

    def __init__(self, source: str, errors: list[Problem]) -> None:
        self.errors = errors
        super().__init__("\n".join(f"{source}:{problem.line}: {problem.text}" for problem in errors))


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


@dataclass(frozen=True)
class PolicyText:
    """A file's document and the place of everything in it. `outcomes` are of its examples and tests, in its order."""

    document: PolicyDocument
    reading: YamlReading
    outcomes: tuple[Outcome, ...] = ()


def load_policy(text: str, source: str, operator: PolicyDocument | None = None) -> Policy:
    """Load a policy from the text of a file; `source` names it in messages. Raises PolicyError.

    The tests of the file are judged together with the operator's layer, where one is given.
    """
    read = _read(text, source)
    policy = _in_layers(read, source, operator)
    if untrue := _untrue(read.reading, prove_tests(read.document, read.reading, policy)):
        raise PolicyError(source, untrue)
    return policy


def load_document(text: str, source: str) -> PolicyDocument:
    """Load a policy as a document: all is checked but its tests, which need both layers. Raises PolicyError."""
    return _read(text, source).document


def read_policy(text: str, source: str, operator: PolicyDocument | None = None) -> PolicyText:
    """Read a policy for examination, whether or not what it promises is true.

    Raises PolicyError with whatever is wrong, untrue examples and tests aside.
    """
    read = _read(text, source, may_be_untrue=True)
    tests = prove_tests(read.document, read.reading, _in_layers(read, source, operator))
    outcomes = (*read.outcomes, *(outcome for _, outcome in tests))
    return replace(read, outcomes=tuple(sorted(outcomes, key=lambda outcome: outcome.line)))


def decoded(data: bytes, source: str) -> str:
    """Return the text of a file. Raises PolicyError for what is no text."""
    try:
        # What is too large may be cut off anywhere, and does not load for that.
        return data.decode(errors="strict" if len(data) <= LIMIT_BYTES else "replace")
    except UnicodeDecodeError as error:
        problem = Problem(data[: error.start].count(b"\n") + 1, "", "not UTF-8 text")
        raise PolicyError(source, [problem]) from error


def _read(text: str, source: str, *, may_be_untrue: bool = False) -> PolicyText:
    if len(text) > LIMIT_BYTES or len(text.encode(errors="replace")) > LIMIT_BYTES:
        message = f"larger than {LIMIT_BYTES:,} bytes, the limit for a policy; remove or merge rules"
        raise PolicyError(source, [Problem(1, "", message)])
    reading = read_yaml(text)
    document: PolicyDocument | None = None
    problems = list(reading.problems)
    outcomes: list[tuple[Path, Outcome]] = []
    if reading.data is not None or not problems:
        try:
            document = PolicyDocument.model_validate(reading.data)
        except ValidationError as error:
            problems += _problems(reading, translated(error))
    if document is not None:
        wrong = list(wrong_places(document, reading))
        problems += _problems(reading, wrong)
        # Examples are judged one rule at a time; only a reasonable number of them is worth the time.
        if not any(path == () for path, _ in wrong):
            outcomes = list(prove_examples(document, reading))
    untrue = _untrue(reading, outcomes)
    if document is None or problems or (untrue and not may_be_untrue):
        raise PolicyError(source, sorted([*problems, *untrue], key=lambda problem: problem.line))
    return PolicyText(document, reading, tuple(outcome for _, outcome in outcomes))


def _in_layers(read: PolicyText, source: str, operator: PolicyDocument | None) -> Policy:
    """Return a policy together with the operator's. Raises PolicyError where they do not fit."""
    if operator is not None:
        wrong = [*check_layers(read.document, operator), *private_hosts(read.document, operator)]
        if wrong:
            raise PolicyError(source, _problems(read.reading, wrong))
    return Policy(read.document, operator)


def _problems(reading: YamlReading, wrong: Iterable[tuple[Path, str]]) -> list[Problem]:
    found = [Problem(reading.line(path), field_of(path), message) for path, message in wrong]
    return sorted(found, key=lambda problem: problem.line)


def _untrue(reading: YamlReading, outcomes: Iterable[tuple[Path, Outcome]]) -> list[Problem]:
    return _problems(reading, ((path, outcome.message) for path, outcome in outcomes if not outcome.passed))


def prove_examples(document: PolicyDocument, reading: YamlReading) -> Iterator[tuple[Path, Outcome]]:
    """Yield the outcome of each example of a file, with its place.

    The files that programs name are other rules' business, and a time window is taken to be open.
    """
    for path, rule in all_rules(document):
        if rule.examples.match or rule.examples.not_match:
            # As the rule is while its time window is open, and in force.
            unless = rule.unless if rule.unless is None or rule.unless.time is None else None
            at_any_time = rule.model_copy(update={"mode": "enforce", "time": None, "unless": unless})
            alone = Policy(_NOTHING.model_copy(update={"rules": (at_any_time,)}), judges_effects=False)
            for kind, examples in (("match", rule.examples.match), ("not_match", rule.examples.not_match)):
                for number, example in enumerate(examples):
                    place = (*path, "examples", kind, number)
                    message = _broken(alone, rule, example, matches=kind == "match")
                    yield (
                        place,
                        Outcome(kind, reading.line(place), rule.id, shown_example(example), not message, message),
                    )


def prove_tests(document: PolicyDocument, reading: YamlReading, policy: Policy) -> Iterator[tuple[Path, Outcome]]:
    """Yield the outcome of each test of a file, with its place."""
    for number, test in enumerate(document.tests):
        place: Path = ("tests", number)
        decision = policy.judge(test.tool, test.args, Facts(at=moment(test.at)))
        message = ""
        if decision.verdict != test.verdict or test.rule not in (None, decision.rule):
            expected = test.verdict if test.rule is None else f"{test.verdict} by {test.rule}"
            message = f"expected {expected}, and it is {decision.verdict} by {decision.rule}: {decision.reason}"
        call = f"{test.tool} {shown_example(test.args)}"
        yield place, Outcome("test", reading.line(place), test.rule or "", call, not message, message)


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


def _broken(alone: Policy, rule: Rule, example: Example, *, matches: bool) -> str:
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


def shown_example(example: Example) -> str:
    """Return an example, or the arguments of a test, for people."""
    return example if isinstance(example, str) else " ".join(f"{name}={value}" for name, value in example.items())
