"""Tenants: who they are, what their policy says, and the sandbox it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.agent_settings import AgentSettings
from gateway.agents import check
from gateway.config import Config
from gateway.errors import Misconfigured, Unauthenticated
from gateway.model_settings import ModelSettings
from gateway.policy import Policy, PolicyError, load_policy
from sandbox.engine import SandboxLimits, SandboxSpec

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Tenant:
    """A tenant with its policy in force, its model, and the agents that it can name; every model in them is whole."""

    name: str
    policy: Policy
    model: ModelSettings
    agents: Mapping[str, AgentSettings]

    def sandbox_spec(self, thread: str) -> SandboxSpec:
        """Return what a sandbox of this tenant is made of."""
        asked = self.policy.document.sandbox
        return SandboxSpec(
            tenant=self.name,
            thread=thread,
            image=asked.image,
            runtime=asked.runtime,
            refuse_hard_links=self.policy.tells_paths_apart,
            limits=SandboxLimits(
                memory_bytes=asked.memory_mib * _MIB,
                cpus=asked.cpus,
                pids=asked.pids,
                workspace_bytes=asked.workspace_mib * _MIB,
                tmp_bytes=asked.tmp_mib * _MIB,
            ),
        )


def load_tenants(config: Config) -> Mapping[str, Tenant]:
    """Load every tenant's policy and look at its agents; Misconfigured lists what is wrong, and in which place."""
    tenants: dict[str, Tenant] = {}
    for name, settings in config.tenants.items():
        path = config.path(settings.policy)
        try:
            policy = load_policy(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"tenants.{name}.policy: {path}: {error}") from error
        except PolicyError as error:
            problems = "\n".join(f"  {path}:{p.line}: {p.field}: {p.message}" for p in error.errors)
            raise Misconfigured(f"the policy of tenant {name} does not load:\n{problems}") from error
        model = config.model_of(name)
        tenants[name] = Tenant(name, policy, model, _agents(config, name, model, policy))
    return tenants


def _agents(config: Config, tenant: str, model: ModelSettings, policy: Policy) -> Mapping[str, AgentSettings]:
    """Return the agents that a tenant can name. A bad one is found now, not when a run names it."""
    agents: dict[str, AgentSettings] = {}
    problems = []
    for name, agent in config.agents_of(tenant).items():
        try:
            agents[name] = agent.within(name, model)
            check(agents[name], model, policy.document)
        except Misconfigured as error:
            own = name in config.tenants[tenant].agents
            where = f"tenants.{tenant}.agents" if own else f"for tenant {tenant}: agents"
            problems.append(f"{where}.{name}.{error}")
    if problems:
        raise Misconfigured("; ".join(problems))
    return agents


def tenant_named(tenants: Mapping[str, Tenant], name: str) -> Tenant:
    """Return a tenant; a key that outlived its tenant's configuration is not known any more."""
    if name not in tenants:
        raise Unauthenticated("this key's tenant is not configured here: ask the operator")
    return tenants[name]
