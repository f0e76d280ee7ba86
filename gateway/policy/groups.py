"""Groups of rules: what is wrong with how they use each other, and every rule of a file with its place."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.yaml_lines import Path


def all_rules(document: PolicyDocument) -> Iterator[tuple[Path, Rule]]:
    """Yield the rules of a file with their places, those of groups that nothing uses too."""
    for place, rule in enumerate(document.rules):
        yield ("rules", place), rule
    for name, group in document.groups.items():
        for place, rule in enumerate(group.rules):
            yield ("groups", name, "rules", place), rule


def group_problems(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield the places at which a group is used that does not exist, or that uses the group it is used in."""
    uses: dict[str | None, tuple[str, ...]] = {None: document.use}
    uses.update((name, group.use) for name, group in document.groups.items())
    for user, names in uses.items():
        for place, name in enumerate(names):
            if name not in document.groups:
                known = ", ".join(document.groups) or "none"
                yield (*_path(user), place), f"there is no group {name!r}; groups of this file: {known[:300]}"
            elif name in names[:place]:
                yield (*_path(user), place), f"the group {name!r} is named twice; keep one"
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        path = (*_path(cycle[0]), uses[cycle[0]].index(cycle[1]))
        yield path, f"groups use each other in a circle: {' -> '.join(cycle)}; take one of these uses out"


def _path(user: str | None) -> Path:
    return ("use",) if user is None else ("groups", user, "use")
