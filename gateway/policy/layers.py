"""Two layers, an operator's and a tenant's: the rules of both that apply, and the sections that hold.

Rules come with groups written out, each with its layer, its group and its place. Of the sections the stricter of what
each file says holds. Only what a file says counts: a default is what holds where neither says anything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.policy.decision import STRICTNESS, Layer
from gateway.policy.document import (
    EvictionSection,
    EvictionSizes,
    PolicyDocument,
    RedactionSection,
    Rule,
    SandboxSection,
)
from gateway.policy.fields import Section
from gateway.policy.yaml_lines import Path
from sandbox.image_names import ImageRule


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


# How what both layers say of a field becomes one value, the operator's word first; of other fields the least counts.
_MERGED: Mapping[tuple[type[Section], str], Callable[[list[Any]], Any]] = {
    (SandboxSection, "image"): lambda said: said[0],
    (SandboxSection, "runtime"): lambda said: said[0],
    (SandboxSection, "home"): lambda said: max(said, key=("workspace", "read_only").index),
    (SandboxSection, "snapshots"): lambda said: min(said, key=("asked", "run", "step").index),  # what keeps less
    (SandboxSection, "require_digest"): any,
    (RedactionSection, "well_known"): any,
}


def effective_document(tenant: PolicyDocument, operator: PolicyDocument | None) -> PolicyDocument:
    """Return the tenant's document with the sections that hold; its rules, groups and tests stay as they are."""
    if operator is None:
        return tenant
    written = [document.opaque for document in (operator, tenant) if "opaque" in document.model_fields_set]
    results = (rule.model_copy(update={"id": f"operator/{rule.id}"}) for rule in operator.results)
    redaction = RedactionSection(**_strictest(operator.redaction, tenant.redaction, leaving_out="patterns"))
    # A copy, because both files together may name more patterns than one.
    patterns = tuple(dict.fromkeys((*operator.redaction.patterns, *tenant.redaction.patterns)))
    numbers = {name: (getattr(operator, name), getattr(tenant, name)) for name in ("limits", "quotas", "network")}
    sections = {
        **{name: type(both[0])(**_strictest(*both)) for name, both in numbers.items()},
        "sandbox": _sandbox(tenant.sandbox, operator.sandbox),
        "eviction": _eviction(tenant.eviction, operator.eviction),
        "redaction": redaction.model_copy(update={"patterns": patterns}),
        "results": (*results, *tenant.results),
        "enforcement": "kernel" if "kernel" in (tenant.enforcement, operator.enforcement) else "reading",
        "opaque": max(written, key=lambda effect: STRICTNESS[effect], default=tenant.opaque),
    }
    return tenant.model_copy(update=sections)


def _strictest(*sections: Section, leaving_out: str = "") -> dict[str, Any]:
    """Return the strictest value for each field that one of the sections writes."""
    strictest = {}
    for name in type(sections[0]).model_fields:
        values = [getattr(section, name) for section in sections if name in section.model_fields_set]
        said = [value for value in values if value is not None]
        if said and name != leaving_out:
            strictest[name] = _MERGED.get((type(sections[0]), name), min)(said)
    return strictest


def _sandbox(tenant: SandboxSection, operator: SandboxSection) -> SandboxSection:
    section = SandboxSection(**_strictest(operator, tenant, leaving_out="images"))
    # An image must be on both lists. There is one image, so the list that refuses it, if one does, says all.
    lists = [images for images in (operator.images, tenant.images) if images is not None]
    refusing = [images for images in lists if ImageRule(images).refusal(section.image)]
    return section.model_copy(update={"images": (refusing or lists)[0]}) if lists else section


def _eviction(tenant: EvictionSection, operator: EvictionSection) -> EvictionSection:
    layers = [section for section in (operator, tenant) if section.model_fields_set]
    tools = {
        tool: EvictionSizes(**_fitting([section.sizes(tool) for section in layers]))
        for tool in dict.fromkeys((*operator.tools, *tenant.tools))
    }
    return EvictionSection(**_fitting(layers or [tenant]), tools=tools)


def _fitting(sizes: Iterable[EvictionSizes]) -> dict[str, int]:
    """Return the smaller of the sizes, with head and tail made to fit in the limit."""
    smallest = {**EvictionSizes().model_dump(), **_strictest(*sizes, leaving_out="tools")}
    limit = smallest["limit_chars"]
    head = min(smallest["head_chars"], limit // 2)
    return {"limit_chars": limit, "head_chars": head, "tail_chars": min(smallest["tail_chars"], limit - head)}
