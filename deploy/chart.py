"""Write what follows from the Helm chart: its values.schema.json, and the base of the plain manifests (kustomize).

.venv/bin/python deploy/chart.py            writes the files
.venv/bin/python deploy/chart.py --check    fails if one differs from what it would write
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

from gateway.config.config import Config

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/airlock"
BASE = ROOT / "deploy/kustomize/base"
_GENERATED = "# Made by deploy/chart.py from the Helm chart: `make chart`.\n"
# Settings that the chart makes, by their section. Those of `sandbox.kubernetes` come with its engine.
_OWNED = {
    "Config": ("directory", "state_dir", "snapshots_dir", "database_url", "database_password_file", "drain_s", "tls"),
    "HttpSettings": ("listen",),
    "TelemetrySettings": ("metrics_listen", "metrics_beyond_loopback"),
    "SandboxSettings": ("engine", "engine_url", "channel_dir"),
    "KubernetesSettings": (
        "namespace", "namespace_per_tenant", "gateway_namespace", "gateway_selector", "image_pull_secrets",
        "kubeconfig", "context",
    ),
}  # fmt: skip
_OF_NAMES = ("properties", "patternProperties", "$defs")
_SAYS_NOTHING = ("title", "default", "examples")
_LABELS_OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def values_schema() -> dict[str, Any]:
    """Return the schema of the chart's values."""
    schema = _closed(yaml.safe_load((CHART.parent / "values.schema.yaml").read_text(encoding="utf-8")))
    settings = _without_owned(_with_null(Config.model_json_schema()))
    schema["$defs"].update(settings.pop("$defs"))
    # `tenants` may come with a second file of values: the gateway says if there are none.
    schema["properties"]["config"] = {key: value for key, value in settings.items() if key != "required"}
    return schema  # type: ignore[no-any-return]


def _closed(schema: Any) -> Any:
    """Forbid what is not named."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and "type" not in schema["properties"]:
        closed |= {"type": "object", "additionalProperties": False}
    return closed


def _with_null(schema: Any, *, names: bool = False) -> Any:
    """Say `or null` in the list of types, not as an alternative, whose errors are long. A section may always be null.

    `names`: the keys are names of fields, not words of the schema's language.
    """
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if names:
        return {key: _with_null(value) for key, value in schema.items()}
    kept = {key: _with_null(value, names=key in _OF_NAMES) for key, value in schema.items() if key not in _SAYS_NOTHING}
    if kept.get("type") == "object":
        kept["type"] = ["object", "null"]
    match kept.get("anyOf"):
        case [{"type": str(kind), **rest}, {"type": "null"}] if "enum" not in rest:
            del kept["anyOf"]
            kept |= {**rest, "type": [kind, "null"]}
        case [{"$ref": _} | {"type": ["object", "null"]} as one, {"type": "null"}]:
            del kept["anyOf"]
            kept |= one
    return kept


def _without_owned(settings: dict[str, Any]) -> dict[str, Any]:
    for name, owned in _OWNED.items():
        section = settings if name == "Config" else settings["$defs"].get(name, {"properties": {}})
        for field in owned:
            section["properties"].pop(field, None)
    return settings


def manifests() -> dict[str, str]:
    """Return the files of the base: what `helm template` makes of deploy/kustomize/values.yaml."""
    values = yaml.safe_load((BASE.parent / "values.yaml").read_text(encoding="utf-8"))
    values["policies"] = {"default.yaml": (ROOT / "gateway/policy/starter.yaml").read_text(encoding="utf-8")}
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(values, name="airlock", namespace="airlock-gateways")
    files: dict[str, str] = {}
    for template, text in sorted(rendered.items()):
        made = [_plain(one) for one in yaml.safe_load_all(text) if one] if template.endswith(".yaml") else []
        for one in list(made):
            if one["kind"] == "ConfigMap":  # kustomization.yaml makes them, so that Pods follow their contents
                files |= dict(_files_of(one))
                made.remove(one)
        if made:
            files[Path(template).name] = _GENERATED + yaml.safe_dump_all(made, sort_keys=False, width=120)
    return files


def _plain(made: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only Helm reads."""
    template = made.get("spec", {}).get("template", {})
    for metadata in (made["metadata"], template.get("metadata", {})):
        for label in _LABELS_OF_HELM:
            metadata.get("labels", {}).pop(label, None)
        for annotation in ("helm.sh/resource-policy", "checksum/config"):
            metadata.get("annotations", {}).pop(annotation, None)
        if not metadata.get("annotations", True):
            del metadata["annotations"]
    return made


def _files_of(config_map: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    policies = config_map["metadata"]["name"].endswith("-policies")
    for name, content in config_map["data"].items():
        yield (f"policies/{name}", content) if policies else (name, _GENERATED + content)


def main(*arguments: str) -> None:
    """Write the files, or with --check compare them."""
    put = _compare if "--check" in arguments else _write
    # First the schema, by which the chart is rendered.
    put(CHART / "values.schema.json", json.dumps(values_schema(), indent=1) + "\n")
    for name, content in manifests().items():
        put(BASE / name, content)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def _compare(path: Path, content: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        raise SystemExit(f"run `make chart`: {path.relative_to(ROOT)} would change")


if __name__ == "__main__":
    main(*sys.argv[1:])
