"""Two layers made one: the sections that hold for a tenant under its operator, the stricter of what each file says.

Only what a file says counts: a default is what holds where neither says anything.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.policy.decision import STRICTNESS
from gateway.policy.document import (
    EvictionSection,
    EvictionSizes,
    LimitsSection,
    NetworkSection,
    PolicyDocument,
    QuotasSection,
    RedactionSection,
    SandboxSection,
)
from gateway.policy.fields import Section
from sandbox.image_names import ImageRule

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
    sections = {
        "sandbox": _sandbox(tenant.sandbox, operator.sandbox),
        "limits": LimitsSection(**_strictest(operator.limits, tenant.limits)),
        "eviction": _eviction(tenant.eviction, operator.eviction),
        "quotas": QuotasSection(**_strictest(operator.quotas, tenant.quotas)),
        "network": NetworkSection(**_strictest(operator.network, tenant.network)),
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
