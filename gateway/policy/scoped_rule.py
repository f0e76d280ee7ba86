"""The rules that a policy file applies, groups written out: each with its layer, its group and its place."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.policy.decision import Layer
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.yaml_lines import Path


@dataclass(frozen=True)
class ScopedRule:
    """A rule that applies. `path` is where it stands in its file; `group` is None for one under `rules`."""

    rule: Rule
    layer: Layer
    group: str | None
    path: Path

    @property
    def name(self) -> str:
        """Return the name that decisions give it."""
        return f"operator/{self.rule.id}" if self.layer == "operator" else self.rule.id


def all_rules(document: PolicyDocument) -> Iterator[tuple[Path, Rule]]:
    """Yield the rules of a file with their places, those of groups that nothing uses too."""
    for place, rule in enumerate(document.rules):
        yield ("rules", place), rule
    for name, group in document.groups.items():
        for place, rule in enumerate(group.rules):
            yield ("groups", name, "rules", place), rule


def scoped_rules(document: PolicyDocument, layer: Layer = "tenant") -> Iterator[ScopedRule]:
    """Yield the rules of one file that apply: its own, then those of the groups in use, each group once."""
    for place, rule in enumerate(document.rules):
        yield ScopedRule(rule, layer, None, ("rules", place))
    seen: set[str] = set()
    used = list(document.use)
    for name in used:  # which grows as it is gone through
        if name in seen or name not in document.groups:
            continue
        seen.add(name)
        group = document.groups[name]
        used.extend(group.use)
        for place, rule in enumerate(group.rules):
            yield ScopedRule(rule, layer, name, ("groups", name, "rules", place))


def scoped_in_both(document: PolicyDocument, operator: PolicyDocument | None) -> list[ScopedRule]:
    """Return the rules of the operator's layer, then those of the tenant's."""
    of_operator = scoped_rules(operator, "operator") if operator is not None else ()
    return [*of_operator, *scoped_rules(document)]
