"""A policy as it is when it allows most: what it says at the right time, in the right circumstances.

The checks try calls out. Whether a call passes must not depend on the hour at which they run.
"""

from __future__ import annotations

from gateway.policy.document import Condition, PolicyDocument, Rule

_CIRCUMSTANCES = ("time", "when", "size_bytes")


def at_its_loosest(document: PolicyDocument) -> PolicyDocument:
    """Return a policy in which circumstances hold where they loosen it, and do not where they tighten it."""
    groups = {
        name: group.model_copy(update={"rules": _loosest(group.rules)}) for name, group in document.groups.items()
    }
    return document.model_copy(update={"rules": _loosest(document.rules), "groups": groups, "tests": ()})


def _loosest(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(loose for rule in rules if (loose := _rule(rule)) is not None)


def _rule(rule: Rule) -> Rule | None:
    if rule.effect == "allow":
        update: dict[str, object] = dict.fromkeys((*_CIRCUMSTANCES, "rate", "at_once"))
        if _depends(rule.unless):
            update["unless"] = None
        return rule.model_copy(update=update)
    return None if _depends(rule) or _depends(rule.unless) else rule


def _depends(condition: Condition | None) -> bool:
    return condition is not None and not condition.given().isdisjoint(_CIRCUMSTANCES)
