"""What the checks look at, and what they say."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.policy.layers import ScopedRule, scoped_in_both
from gateway.policy.yaml_lines import Path, YamlReading

Severity = Literal["warning", "note"]
_WARNINGS = frozenset(
    ("dead-rule", "denied-by-path", "impossible-glob", "opaque-allow", "reaches-interpreter", "side-door")
)
"""What is worth a warning of a rule; the other checks are notes."""
_CIRCUMSTANCES = frozenset({"time", "when", "size_bytes", "methods", "url_paths"})


@dataclass(frozen=True)
class Finding:
    """One thing to look at. `rule` is "" for a section; `line` counts from 1; `fix` is the suggested fix."""

    check: str
    severity: Severity
    rule: str
    line: int
    what: str
    fix: str


@dataclass(frozen=True)
class Linted:
    """A policy file under examination, with the operator's layer if there is one. Findings are about the file alone."""

    document: PolicyDocument
    reading: YamlReading
    operator: PolicyDocument | None = None

    @cached_property
    def rules(self) -> list[ScopedRule]:
        """Return the rules that are enforced, of both layers."""
        return [placed for placed in scoped_in_both(self.document, self.operator) if placed.rule.mode == "enforce"]

    @cached_property
    def own(self) -> list[ScopedRule]:
        """Return the rules of the file itself that are enforced."""
        return [placed for placed in self.rules if placed.layer == "tenant"]

    @cached_property
    def named(self) -> dict[str, Rule]:
        """Return the enforced rules of both layers by the names that decisions give them."""
        return {placed.name: placed.rule for placed in self.rules}

    @cached_property
    def loosest(self) -> Policy:
        """Return the policy as it is at the time and in the circumstances in which it allows most."""
        return Policy(at_its_loosest(self.document), self.operator and at_its_loosest(self.operator))

    @cached_property
    def _loosest_of_programs(self) -> Policy:
        return Policy(self.loosest.tenant_document, self.loosest.operator_document, judges_effects=False)

    def allowed(self, tool: str, **arguments: Any) -> tuple[str, ...] | None:
        """Return the names of the allow rules that let a call pass, None for a call that does not pass unasked."""
        return self._allowing(self.loosest, tool, arguments)

    def runs(self, command: str) -> tuple[str, ...] | None:
        """Return the same for a command line, without regard to the files that it names."""
        return self._allowing(self._loosest_of_programs, "execute", {"command": command})

    def _allowing(self, policy: Policy, tool: str, arguments: dict[str, Any]) -> tuple[str, ...] | None:
        decision = policy.judge(tool, arguments)
        if decision.verdict != "allow":
            return None
        matched = (match.rule for match in decision.trace if match.effect == "allow" and match.rule in self.named)
        return tuple(dict.fromkeys((*matched, decision.rule)))

    def finding(self, check: str, placed: ScopedRule, what: str, fix: str) -> Finding:
        severity: Severity = "warning" if check in _WARNINGS else "note"
        return Finding(check, severity, placed.name, self.reading.line(placed.path), what, fix)

    def about(self, check: str, path: Path, what: str, fix: str) -> Finding:
        """Return a warning about another place of the file."""
        return Finding(check, "warning", "", self.reading.line(path), what, fix)


def at_its_loosest(document: PolicyDocument) -> PolicyDocument:
    """Return a policy as it is when it allows most: circumstances hold where they loosen it, and nowhere else.

    The checks try calls out. Whether a call passes must not depend on the hour at which they run.
    """
    groups = {
        name: group.model_copy(update={"rules": _loosest(group.rules)}) for name, group in document.groups.items()
    }
    return document.model_copy(update={"rules": _loosest(document.rules), "groups": groups, "tests": ()})


def _loosest(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    always = dict.fromkeys((*_CIRCUMSTANCES, "rate", "at_once"))
    return tuple(
        rule.model_copy(update={**always, "unless": unless}) if rule.effect == "allow" else rule
        for rule in rules
        for unless in [None if rule.unless and rule.unless.given() & _CIRCUMSTANCES else rule.unless]
        if rule.effect == "allow" or not rule.all_given & _CIRCUMSTANCES
    )
