"""Helm's lint and template, in a process of their own: the library is a Go program's.

`python -m tests.kubernetes.helm` reads sets of values from its standard input, and writes what each gives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "deploy/helm/airlock"
NAMESPACE = "gateways"
RELEASE = "airlock"
Manifest = dict[str, Any]
LEAST: dict[str, Any] = {
    "database": {"url": "postgresql://airlock@postgresql.databases/airlock"},
    "tls": {"secretName": "airlock-tls"},
    "config": {"tenants": {"default": {"policy": "policies/default.yaml"}}},
    "policies": {"default.yaml": "version: 1\n"},
}
"""The values without which nothing is rendered."""


@dataclass(frozen=True)
class Rendered:
    """What a set of values gives: an error, or the objects, with what lint says of them."""

    error: str = ""
    findings: Sequence[str] = ()
    objects: Sequence[Manifest] = field(default=())

    def one(self, kind: str, name: str = RELEASE) -> Manifest:
        (found,) = [made for made in self.objects if (made["kind"], made["metadata"]["name"]) == (kind, name)]
        return found

    def all(self, kind: str) -> list[Manifest]:
        return [made for made in self.objects if made["kind"] == kind]


def render(sets: Sequence[Mapping[str, Any]]) -> list[Rendered]:
    """Return what each set of values gives."""
    command = [sys.executable, "-m", "tests.kubernetes.helm"]
    done = subprocess.run(command, input=json.dumps(sets), capture_output=True, text=True, check=True, timeout=120)
    return [Rendered(**one) for one in json.loads(done.stdout)]


def granted() -> list[Manifest]:
    """Return the rules of the Role that gateways have in the sandboxes' namespace, as `Cluster.grant` takes them."""
    (one,) = render([LEAST])
    rules: list[Manifest] = one.one("Role", f"{RELEASE}-sandboxes")["rules"]
    return rules


def _render(values: Mapping[str, Any]) -> dict[str, Any]:
    import helm_python

    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(dict(values))
            files = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    except helm_python.HelmError as error:
        return {"error": str(error)}
    report = helm_python.lint(CHART, dict(values), strict=True, namespace=NAMESPACE)
    findings = [message["error"] for message in report["messages"] if message["severity"] > 1]
    texts = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
    objects = [made for text in texts for made in yaml.safe_load_all(text) if made is not None]
    return {"findings": findings, "objects": objects}


if __name__ == "__main__":
    print(json.dumps([_render(values) for values in json.load(sys.stdin)]))
