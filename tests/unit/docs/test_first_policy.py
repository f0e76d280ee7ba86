"""The policy in README.md loads, its examples are true, and it decides what the text around it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.policy.loading import load_policy

PAGE = Path(__file__).parents[3] / "README.md"


@pytest.mark.parametrize(
    "tool, arguments, rule",
    [
        ("read_file", {"path": "/workspace/README.md"}, "read-all"),
        ("write_file", {"path": "/workspace/src/app.py", "content": ""}, "write-source"),
        ("write_file", {"path": "/workspace/setup.py", "content": ""}, "default-deny"),
        ("execute", {"command": "python3 -m unittest -v"}, "run-tests"),
        ("execute", {"command": "python3 -m unittest; git push"}, "default-deny"),
    ],
)
def test_the_first_policy_reads_everything_writes_the_project_and_runs_its_tests(
    tool: str, arguments: dict[str, str], rule: str
) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    policy = load_policy(text, str(PAGE))
    decided = policy.judge(tool, arguments)
    assert (decided.rule, decided.verdict) == (rule, "deny" if rule == "default-deny" else "allow")
