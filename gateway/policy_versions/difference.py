"""What changes from one policy to another: verdicts of calls, counted by rule, and what the files say."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.policy.decision import Facts
from gateway.policy.document import PolicyDocument
from gateway.policy.fields import moment
from gateway.policy.layers import all_rules
from gateway.policy.loading import example_arguments, shown_example

LIMIT_SAMPLES = 3


class ExampleCall(NamedTuple):
    """A call that a file tells of in an example or a test. `shown` is for people."""

    tool: str
    arguments: dict[str, Any]
    facts: Facts
    shown: str


def example_calls(document: PolicyDocument) -> Iterator[ExampleCall]:
    """Yield the calls that a file tells of; what an example leaves open is judged as of now."""
    for _, rule in all_rules(document):
        for example in (*rule.examples.match, *rule.examples.not_match):
            for tool in rule.tools:
                yield ExampleCall(tool, example_arguments(tool, example), Facts(), f"{tool}: {shown_example(example)}")
    for test in document.tests:
        yield ExampleCall(test.tool, test.args, Facts(at=moment(test.at)), f"{test.tool}: {shown_example(test.args)}")


@dataclass(frozen=True)
class Verdict:
    """A verdict and the rule that it came by."""

    verdict: str
    rule: str

    def __str__(self) -> str:
        return f"{self.verdict} by {self.rule}"


@dataclass
class Change:
    """Calls that change in the same way: how many, and the first few for people."""

    before: Verdict
    after: Verdict
    calls: int = 0
    samples: list[str] = field(default_factory=list)

    @property
    def loosens(self) -> bool:
        """Whether more passes now."""
        order = ("deny", "ask", "allow")
        return order.index(self.after.verdict) > order.index(self.before.verdict)


@dataclass
class Tally:
    """Counts calls that were judged twice; memory grows with the pairs of rules, never with the calls."""

    calls: int = 0
    _changes: dict[tuple[Verdict, Verdict], Change] = field(default_factory=dict)

    def take(self, before: Verdict, after: Verdict, sample: str) -> None:
        """Count one call; only another verdict is a change, another rule is not."""
        self.calls += 1
        if before.verdict == after.verdict:
            return
        change = self._changes.setdefault((before, after), Change(before, after))
        change.calls += 1
        if len(change.samples) < LIMIT_SAMPLES and sample not in change.samples:
            change.samples.append(sample)

    @property
    def changed(self) -> int:
        return sum(change.calls for change in self._changes.values())

    @property
    def changes(self) -> list[Change]:
        """The changes, what loosens first, then those of most calls."""
        return sorted(self._changes.values(), key=lambda change: (not change.loosens, -change.calls))


@dataclass(frozen=True)
class TextChange:
    """A rule or a setting that two files say differently; None is "not there"."""

    name: str
    before: str | None
    after: str | None


def text_changes(a: PolicyDocument, b: PolicyDocument) -> Iterator[TextChange]:
    """Yield what two files say differently: rules by their ids, groups and sections by their names."""
    first, second = _said(a), _said(b)
    for name in first | second:
        if first.get(name) != second.get(name):
            yield TextChange(name, first.get(name), second.get(name))


def _said(document: PolicyDocument) -> dict[str, str]:
    said: dict[str, str] = {}
    for section, value in document.model_dump(mode="json", exclude={"rules", "groups", "tests", "description"}).items():
        if isinstance(value, dict):
            said |= {f"{section}.{name}": str(item) for name, item in value.items()}
        else:
            said[section] = str(value)
    said |= {f"group {name}": ", ".join(group.use) for name, group in document.groups.items()}
    for _, rule in all_rules(document):
        said[f"rule {rule.id}"] = rule.model_dump_json(exclude_defaults=True, exclude={"examples"})
    return said
