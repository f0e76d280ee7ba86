"""Whether a policy lets agents start the subagents that the configuration gives them; denied unless a rule says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config.agent_settings import AgentSettings
    from gateway.config.config import Config
    from gateway.policy.document import PolicyDocument

SPAWN = "spawn_subagent"
MEND = (
    "add a rule with `tools: [spawn_subagent, check_subagent, wait_subagent, cancel_subagent, list_subagents]` and "
    "`effect: allow`, or take the subagents out of the configuration"
)


def with_subagents(agents: Mapping[str, AgentSettings]) -> list[str]:
    """Return the names of the agents that have subagents."""
    return [name for name, agent in agents.items() if agent.capabilities.subagents is not None]


def agents_of_file(config: Config, file: Path) -> list[str]:
    """Return the agents with subagents that a policy file judges; of any tenant where no tenant's file it is."""
    files = {name: tenant.policy_file for name, tenant in config.tenants.items()}
    own = [name for name, path in files.items() if path and config.path(path).resolve() == file.resolve()]
    return sorted({agent for tenant in own or config.tenants for agent in with_subagents(config.agents_of(tenant))})


def refuses_subagents(document: PolicyDocument, operator: PolicyDocument | None) -> bool:
    """Return whether a policy denies every start of a subagent, at any time."""
    from gateway.policy.judge import Policy
    from gateway.policy.lint.loosest import at_its_loosest

    policy = Policy(at_its_loosest(document), None if operator is None else at_its_loosest(operator))
    return policy.judge(SPAWN, {}).verdict == "deny"


def said(agents: list[str]) -> str:
    """Return what is wrong."""
    who = f"agent {agents[0]} has" if len(agents) == 1 else f"agents {', '.join(agents)} have"
    return f"no rule allows {SPAWN}, and {who} subagents: each start is denied"
