"""docs/http.md: every command on it runs and answers what the page says; openapi.json is valid and complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx2 as httpx
from openapi_spec_validator import validate

from gateway.composition.services import service_files
from gateway.http.http_rules import rules_of
from tests.integration.http.conftest import Listening

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
_PREFIX = "data: "


def examples() -> list[tuple[str, list[str]]]:
    """Return the commands of the page, each with the lines of its answer."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.rstrip("\n").split("\n")
            length = next(n for n, line in enumerate(lines, start=1) if not line.endswith("\\"))
            found.append(("\n".join(lines[:length]), lines[length:]))
    return found


def fits(shown: Any, got: Any) -> bool:
    """Return whether everything that is shown is there."""
    if isinstance(shown, dict):
        return isinstance(got, dict) and all(key in got and fits(value, got[key]) for key, value in shown.items())
    if isinstance(shown, list):
        return isinstance(got, list) and len(shown) == len(got) and all(map(fits, shown, got))
    return bool(shown == got)


def test_every_command_answers_what_the_page_says(gateway: Listening) -> None:
    commands = examples()
    assert len(commands) >= 7
    mark = "--next--"
    script = "\n".join(f"{command}\necho\necho {mark}" for command, _ in commands)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "AIRLOCK_HTTP": gateway.url, "AIRLOCK_API_KEY": gateway.key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (command, shown), answer in zip(commands, done.stdout.split(f"{mark}\n"), strict=False):
        lines = [line for line in answer.split("\n") if line and not line.startswith("id: ") and line != "data: {}"]
        assert len(shown) == len(lines), (command, answer)
        for said, got in zip(shown, lines, strict=True):
            if said.removeprefix(_PREFIX).startswith("{"):
                assert fits(json.loads(said.removeprefix(_PREFIX)), json.loads(got.removeprefix(_PREFIX))), (said, got)
            else:
                assert said == got


def test_the_description_is_valid_and_has_every_rpc(gateway: Listening) -> None:
    document = httpx.get(f"{gateway.url}/openapi.json").json()
    validate(document)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(rule.method, rule.template) for rule in rules_of(service_files())} <= described
    undescribed = [
        f"{path} {method}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not operation["summary"]
    ]
    assert undescribed == []
