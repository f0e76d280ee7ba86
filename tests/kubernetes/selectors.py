"""Label and field selectors, as a list and a watch take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.kubernetes.kinds import Kind
from tests.kubernetes.statuses import bad_request

Made = Mapping[str, Any]
Matcher = Callable[[Made], bool]
_FIELDS = {
    "Pod": ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase",
            "status.podIP"),
    "Event": ("involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "involvedObject.uid", "reason",
              "type"),
    "Namespace": ("status.phase",),
    "Node": ("spec.unschedulable",),
    "Secret": ("type",),
}  # fmt: skip


def matcher(kind: Kind, labels: str, fields: str) -> Matcher:
    """Return whether an object is selected, or raise for a selector that the kind does not support."""
    wanted_labels = [_label_term(term) for term in _split(labels)]
    wanted_fields = [_field_term(kind, term) for term in _split(fields)]
    return lambda made: all(term(made) for term in (*wanted_labels, *wanted_fields))


def _split(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def _label_term(term: str) -> Matcher:
    def value(made: Made, key: str) -> Any:
        return made["metadata"].get("labels", {}).get(key)

    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        key, way = found[1], found[2]
        values = {text.strip() for text in found[3].split(",")}
        return lambda made: (value(made, key) in values) == (way == "in")
    if found := re.fullmatch(r"([^\s=!]+)\s*(==|=|!=)\s*([\w.-]*)", term):
        key, way, wanted = found.groups()
        return lambda made: (value(made, key) == wanted) == (way != "!=")
    if found := re.fullmatch(r"(!?)\s*([\w./-]+)", term):
        absent, key = found.groups()
        return lambda made: (value(made, key) is None) == bool(absent)
    raise bad_request(f"unable to parse requirement: found '{term}', expected: ',' or 'end of string'")


def _field_term(kind: Kind, term: str) -> Matcher:
    found = re.fullmatch(r"([\w.]+)\s*(==|=|!=)\s*(.*)", term)
    if not found:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    path, way, wanted = found.groups()
    if path not in {"metadata.name", "metadata.namespace", *_FIELDS.get(kind.kind, ())}:
        raise bad_request(f"field label not supported: {path}")
    return lambda made: (field(made, path) == wanted) == (way != "!=")


def field(made: Made, path: str) -> str:
    """Return a field's text, "" if it is absent."""
    value: Any = made
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return value if isinstance(value, str) else str(value).lower()
