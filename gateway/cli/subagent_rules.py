"""Checks whether a policy lets agents start the subagents that the configuration gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config.agent_settings import AgentSettings
    from gateway.config.config import Config
    from gateway.policy.document import PolicyDocument

SPAWN = "spawn_subagent"
FIX = (
    "add a rule with `tools: [spawn_subagent, check_subagent, wait_subagent, cancel_subagent, list_subagents]` and "
    "`effect: allow`, or remove the subagents from the configuration"
)


def with_subagents(agents: Mapping[str, AgentSettings]) -> list[str]:
    """Return the names of the agents that have subagents."""
    return [name for name, agent in agents.items() if agent.capabilities.subagents is not None]


def agents_of_file(config: Config, file: Path) -> list[str]:
    """Return the agents with subagents that a policy file governs; those of all tenants if no tenant uses the file."""
    files = {name: tenant.policy_file for name, tenant in config.tenants.items()}
    own = [name for name, path in files.items() if path and config.path(path).resolve() == file.resolve()]
    return sorted({agent for tenant in own or config.tenants for agent in with_subagents(config.agents_of(tenant))})


def refuses_subagents(document: PolicyDocument, operator: PolicyDocument | None) -> bool:
    """Return whether a policy always denies starting a subagent."""
    from gateway.policy.judge import Policy
    from gateway.policy.lint.findings import at_its_loosest

    policy = Policy(at_its_loosest(document), None if operator is None else at_its_loosest(operator))
    return policy.judge(SPAWN, {}).verdict == "deny"


def problem(agents: list[str]) -> str:
    """Return the problem as a sentence."""
    who = f"agent {agents[0]} has" if len(agents) == 1 else f"agents {', '.join(agents)} have"
    return f"{who} subagents, but no rule allows {SPAWN}, so every start is denied"
