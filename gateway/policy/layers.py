"""Two layers made one: the sections that hold for a tenant under its operator, the stricter of what each file says.

Only what a file says counts: a default is what holds where neither says anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.policy.decision import STRICTNESS
from gateway.policy.document import (
    EvictionSection,
    EvictionSizes,
    LimitsSection,
    PolicyDocument,
    QuotasSection,
    RedactionSection,
    ResultRule,
    SandboxSection,
    Section,
)
from gateway.policy.images import ImageRule

_OPERATORS_WORD = ("image", "runtime")
_OF_IMAGES = ("images", "require_digest")
# What keeps less comes first.
_SNAPSHOTS = ("asked", "run", "step")


def effective_document(tenant: PolicyDocument, operator: PolicyDocument | None) -> PolicyDocument:
    """Return the tenant's document with the sections that hold; its rules, groups and tests stay as they are."""
    if operator is None:
        return tenant
    written = [document.opaque for document in (operator, tenant) if "opaque" in document.model_fields_set]
    sections = {
        "sandbox": _sandbox(tenant.sandbox, operator.sandbox),
        "limits": LimitsSection(**_smallest(tenant.limits, operator.limits)),
        "eviction": _eviction(tenant.eviction, operator.eviction),
        "quotas": QuotasSection(**_smallest(tenant.quotas, operator.quotas)),
        "redaction": _redaction(tenant.redaction, operator.redaction),
        "results": (*(_operators(rule) for rule in operator.results), *tenant.results),
        "enforcement": "kernel" if "kernel" in (tenant.enforcement, operator.enforcement) else "reading",
        "opaque": max(written, key=lambda effect: STRICTNESS[effect], default=tenant.opaque),
    }
    return tenant.model_copy(update=sections)


def _operators(rule: ResultRule) -> ResultRule:
    return rule.model_copy(update={"id": f"operator/{rule.id}"})


def _written(name: str, *sections: Section) -> list[Any]:
    """Return what the sections say of a field, where they say something."""
    values = (getattr(section, name) for section in sections if name in section.model_fields_set)
    return [value for value in values if value is not None]


def _smallest(*sections: Section, leaving_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the smaller number for each field that a section writes."""
    fields = [name for name in type(sections[0]).model_fields if name not in leaving_out]
    written = {name: _written(name, *sections) for name in fields}
    return {name: min(values) for name, values in written.items() if values}


def _sandbox(tenant: SandboxSection, operator: SandboxSection) -> SandboxSection:
    numbers = _smallest(tenant, operator, leaving_out=(*_OPERATORS_WORD, *_OF_IMAGES, "snapshots", "home"))
    words = {name: values[0] for name in _OPERATORS_WORD if (values := _written(name, operator, tenant))}
    section = SandboxSection(**numbers, **words)
    snapshots = _written("snapshots", operator, tenant)
    if snapshots:
        section = section.model_copy(update={"snapshots": min(snapshots, key=_SNAPSHOTS.index)})
    if "read_only" in _written("home", operator, tenant):
        section = section.model_copy(update={"home": "read_only"})
    digests = _written("require_digest", operator, tenant)
    if digests:
        section = section.model_copy(update={"require_digest": any(digests)})
    # An image must be on both lists. There is one image, so the list that refuses it, if one does, says all.
    lists = _written("images", operator, tenant)
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
    smallest = _smallest(*sizes)
    default = EvictionSizes.model_fields
    limit = smallest.get("limit_chars", default["limit_chars"].default)
    head = min(smallest.get("head_chars", default["head_chars"].default), limit // 2)
    tail = min(smallest.get("tail_chars", default["tail_chars"].default), limit - head)
    return {"limit_chars": limit, "head_chars": head, "tail_chars": tail}


def _redaction(tenant: RedactionSection, operator: RedactionSection) -> RedactionSection:
    well_known = _written("well_known", operator, tenant)
    patterns = (*operator.patterns, *tenant.patterns)
    # A copy, because both files together may name more patterns than one.
    return RedactionSection(well_known=any(well_known) if well_known else True).model_copy(
        update={"patterns": tuple(dict.fromkeys(patterns))}
    )
