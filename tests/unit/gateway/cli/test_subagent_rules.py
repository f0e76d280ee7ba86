from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.doctor_config import _subagents
from gateway.config.config import Config
from gateway.tenancy.tenants import load_tenants

_AGENT = "agents: {a: {capabilities: {subagents: {definitions: {r: {description: d, system_prompt: s}}}}}}"
_ALLOWED = "rules: [{id: subagents, tools: [spawn_subagent], effect: allow, reason: r}]"


@pytest.mark.parametrize(
    "rules, agents, found",
    [("rules: []", _AGENT, True), (_ALLOWED, _AGENT, False), ("rules: []", "", False)],
    ids=["no rule", "a rule", "no subagents"],
)
def test_doctor_says_that_no_rule_allows_an_agent_its_subagents(
    tmp_path: Path, rules: str, agents: str, found: bool
) -> None:
    (tmp_path / "t.yaml").write_text(f"version: 1\n{rules}\n", encoding="utf-8")
    path = tmp_path / "airlock.yaml"
    path.write_text(f"tenants: {{t: {{policy: t.yaml}}}}\n{agents}\n", encoding="utf-8")
    config = Config.load(path)
    finding = _subagents("t", config, load_tenants(config)["t"])
    assert (finding is not None) is found
    if finding is not None:
        assert (finding.what, finding.state) == ("subagents t", "warning")
        assert finding.detail == "agent a has subagents, but no rule allows spawn_subagent, so every start is denied"
