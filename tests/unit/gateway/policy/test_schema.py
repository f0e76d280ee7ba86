"""The JSON Schema of the policy file."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from gateway.policy import STARTER_POLICY
from gateway.policy.schema import policy_schema

PUBLISHED = Path(__file__).parents[4] / "docs" / "policy.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(policy_schema())

EVERYTHING = """\
version: 1
groups: {a: {use: [], rules: []}}
use: [a]
opaque: ask
rules:
- id: x
  tools: [read, write]
  effect: ask
  reason: r
  mode: shadow
  paths: [/workspace/**]
  time: {days: [mon], since: "09:00", until: "17:00", zone: UTC}
  when: path != ''
  unless: {paths: [/workspace/a]}
  rate: {calls: 1, per: hour}
  at_once: 2
  examples: {match: [/workspace/b, {path: /workspace/c, pattern: x}]}
- id: y
  tools: [execute]
  effect: allow
  reason: r
  argv: [[git, [status, diff], "*", {path: [/workspace/**]}, {number: {least: 1, most: 2}}, {end: true}]]
- {id: z, tools: [connect], effect: allow, reason: r, hosts: [pypi.org, 10.0.0.0/8], methods: [GET], url_paths: [/a/**]}
network: {connections: 5, wait_s: 10, bytes_up: 100}
tests: [{tool: ls, args: {path: /workspace}, verdict: deny, at: "2026-11-21T03:00:00+00:00"}]
"""


def test_the_schema_is_one_and_the_published_copy_is_current() -> None:
    jsonschema.Draft202012Validator.check_schema(policy_schema())
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == policy_schema(), "run make reference, and commit"


@pytest.mark.parametrize("text", [STARTER_POLICY, EVERYTHING])
def test_what_loads_is_valid(text: str) -> None:
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{version: 2}",
        "{version: 1, rule: []}",
        "{version: 1, rules: [{id: a, tools: [bash], effect: allow, reason: r}]}",
        "{version: 1, rules: [{id: a, tools: [], effect: allow, reason: r}]}",
        "{version: 1, rules: [{id: A b, tools: [ls], effect: allow, reason: r}]}",
        "{version: 1, rules: [{id: a, tools: [ls], effect: warn, reason: r}]}",
        "{version: 1, limits: {steps: 0}}",
    ],
)
def test_an_editor_marks_what_does_not_load(text: str) -> None:
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text)))


def test_fields_say_what_they_are_for() -> None:
    rule = policy_schema()["$defs"]["Rule"]["properties"]
    assert [name for name, field in rule.items() if "description" not in field] == []
