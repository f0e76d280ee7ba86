"""What types cannot say of a policy file: ids given twice, groups in a circle, rules that contradict each other."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.groups import all_rules, group_problems
from gateway.policy.placed import placed_rules
from gateway.policy.yaml_lines import Path, YamlReading

LIMIT_EXAMPLES = 20_000


def wrong_places(document: PolicyDocument, reading: YamlReading) -> Iterator[tuple[Path, str]]:
    """Yield each place that is wrong, and what is."""
    yield from _duplicate_ids([(path, rule.id) for path, rule in all_rules(document)], "rule", reading)
    results: list[tuple[Path, str]] = [(("results", place), rule.id) for place, rule in enumerate(document.results)]
    yield from _duplicate_ids(results, "result rule", reading)
    own = enumerate(document.redaction.patterns)
    patterns: list[tuple[Path, str]] = [(("redaction", "patterns", place), pattern.id) for place, pattern in own]
    yield from _duplicate_ids(patterns, "pattern", reading)
    yield from group_problems(document)
    yield from _contradictions(document)
    examples = sum(len(rule.examples.match) + len(rule.examples.not_match) for _, rule in all_rules(document))
    if examples > LIMIT_EXAMPLES:
        yield (), f"{examples} examples; a policy has at most {LIMIT_EXAMPLES}"


def _duplicate_ids(named: list[tuple[Path, str]], what: str, reading: YamlReading) -> Iterator[tuple[Path, str]]:
    first: dict[str, int] = {}
    for path, name in named:
        place = (*path, "id")
        if name in first:
            yield place, f"{name!r} is the id of the {what} in line {first[name]} already; choose another"
        first.setdefault(name, reading.line(place))


def _contradictions(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield the rules that allow exactly what another one always denies."""
    denied: dict[str, list[Rule]] = {}
    enforced = [placed for placed in placed_rules(document) if placed.rule.mode == "enforce"]
    for placed in enforced:
        if placed.rule.effect == "deny":
            denied.setdefault(_conditions(placed.rule), []).append(placed.rule)
    for placed in enforced:
        rule = placed.rule
        if rule.effect != "allow" or not denied:
            continue
        for other in denied.get(_conditions(rule), ()):
            if set(rule.tools) <= set(other.tools):
                message = f"rule {rule.id!r} can never allow anything, {other.id!r} denies the same; keep one"
                yield (*placed.path, "effect"), message
                break


def _conditions(rule: Rule) -> str:
    """Return what a rule is about in a form that is equal for equal conditions, in whatever order they are."""
    given = rule.model_dump(mode="json", include={*rule.given(), "unless"})
    for part in (given, given.get("unless") or {}):
        for name in ("paths", "argv", "hosts"):
            if part.get(name) is not None:
                part[name] = sorted(json.dumps(item, sort_keys=True) for item in part[name])
    return json.dumps(given, sort_keys=True)
