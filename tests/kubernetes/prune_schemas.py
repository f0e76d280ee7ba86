"""`python -m tests.kubernetes.prune_schemas OPENAPI.json...`: keep what the API server for tests validates with.

The arguments are OpenAPI documents as an API server publishes them (/openapi/v3/...), for the groups "",
agents.x-k8s.io and extensions.agents.x-k8s.io. Of the rest, schemas.py knows the types from the client's models.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

SCHEMAS = Path(__file__).with_name("schemas.json")
_PREFIX = "#/components/schemas/"
_CORE = (
    "ConfigMap Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod ResourceQuota Secret Service "
    "ServiceAccount"
)
_KINDS = (
    *(f"io.k8s.api.core.v1.{kind}" for kind in _CORE.split()),
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "io.x-k8s.agents.v1beta1.Sandbox",
    *(f"io.x-k8s.agents.extensions.v1beta1.Sandbox{kind}" for kind in ("Claim", "Template", "WarmPool")),
)


def prune(documents: list[dict[str, object]]) -> dict[str, object]:
    """Return the schemas of the kinds in use and of all that they refer to, without descriptions."""
    known: dict[str, object] = {}
    for document in documents:
        for name, schema in document["components"]["schemas"].items():  # type: ignore[index]
            known.setdefault(name, _bare(schema))
    kept: dict[str, object] = {}
    waiting = list(_KINDS)
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = known[name]
            waiting.extend(_references(known[name]))
    return dict(sorted(kept.items()))


def _bare(schema: object) -> object:
    """Drop descriptions, but not a property that is called description."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _bare(value) for key, value in schema.items() if key != "description" or isinstance(value, dict)}


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(_PREFIX)
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def main(paths: list[str]) -> None:
    """Write schemas.json, one schema a line."""
    pruned = prune([json.loads(Path(path).read_text()) for path in paths])
    lines = (f"{json.dumps(name)}: {json.dumps(schema, sort_keys=True)}" for name, schema in pruned.items())
    SCHEMAS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
