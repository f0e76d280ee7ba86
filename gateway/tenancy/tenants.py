"""Tenants: who they are, what their policy says, and the sandbox it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.agents.tenant_agents import agents_of_all
from gateway.config.agent_settings import AgentSettings
from gateway.config.config import Config
from gateway.config.model_settings import CONCURRENT_INFERENCES, ModelSettings
from gateway.errors import Unauthenticated
from gateway.policy import Policy, PolicyDocument
from gateway.policy.images import ANY_IMAGE, ImageRule
from gateway.policy_versions.policies import InForce, Policies
from gateway.policy_versions.policy_check import PolicyChecker, read_policy_file
from gateway.storage.policy_store import OPERATOR
from sandbox.sandbox import SandboxLimits, SandboxSpec

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Tenant:
    """A tenant with its policy, its model, and the agents that it can name; every model in them is whole.

    `policy` is the one in force at the moment that it is asked for, unless the tenant is pinned to one. `images` are
    those that the configuration lets any tenant have.
    `concurrent_inferences` is how many it may have under way in this process.
    """

    name: str
    source: Policy | InForce
    model: ModelSettings
    agents: Mapping[str, AgentSettings]
    images: ImageRule = ANY_IMAGE
    concurrent_inferences: int = CONCURRENT_INFERENCES
    disk_reserve_bytes: int = 0

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.source if isinstance(self.source, Policy) else self.source.policy

    @property
    def policy_reference(self) -> str:
        """The texts that the policy is made of, for `Tenants.at`; "" where the policy never changes."""
        return "" if isinstance(self.source, Policy) else self.source.reference

    def pinned(self) -> Tenant:
        """Return this tenant with the policy that is in force now, whatever comes."""
        return self if isinstance(self.source, Policy) else replace(self, source=self.source.fixed())

    def sandbox_spec(self, thread: str) -> SandboxSpec:
        """Return what a sandbox of this tenant is made of."""
        policy = self.policy
        asked = policy.document.sandbox
        return SandboxSpec(
            tenant=self.name,
            thread=thread,
            image=asked.image,
            runtime=asked.runtime,
            refused=self.images.refusal(asked.image) or asked.image_rule.refusal(asked.image) or "",
            refuse_hard_links=policy.tells_paths_apart,
            idle_timeout_s=asked.idle_timeout_s,
            limits=SandboxLimits(
                memory_bytes=asked.memory_mib * _MIB,
                cpus=asked.cpus,
                pids=asked.pids,
                workspace_bytes=asked.workspace_mib * _MIB,
                workspace_files=asked.workspace_files,
                disk_reserve_bytes=self.disk_reserve_bytes,
                tmp_bytes=asked.tmp_mib * _MIB,
                seccomp_filters=asked.seccomp_filters,
            ),
        )


class Tenants:
    """The tenants of a gateway. Each has the policy that is in force for it, read when it is first asked for."""

    def __init__(self, config: Config, policies: Policies) -> None:
        self._policies = policies
        self._images = config.sandbox.image_rule
        self._disk_reserve_bytes = config.sandbox.disk_reserve_mib * _MIB
        self._agents = agents_of_all(config)
        self._models = {name: config.model_of(name) for name in config.tenants}
        self._inferences = {name: tenant.concurrent_inferences for name, tenant in config.tenants.items()}

    def __len__(self) -> int:
        return len(self._models)

    async def named(self, name: str) -> Tenant:
        """Return a tenant that follows its policy; a key that outlived its tenant's configuration is not known."""
        self._known(name)
        return self._with(name, await self._policies.in_force(name))

    async def at(self, name: str, reference: str) -> Tenant:
        """Return a tenant pinned to a policy that was once in force, by its `policy_reference` of then."""
        self._known(name)
        return self._with(name, await self._policies.at(name, reference))

    def _with(self, name: str, source: InForce) -> Tenant:
        models, agents = self._models[name], self._agents[name]
        return Tenant(
            name,
            source,
            models,
            agents,
            self._images,
            concurrent_inferences=self._inferences[name],
            disk_reserve_bytes=self._disk_reserve_bytes,
        )

    def _known(self, name: str) -> None:
        if name not in self._models:
            raise Unauthenticated("this key's tenant is not configured here: ask the operator")


def load_tenants(config: Config) -> Mapping[str, Tenant]:
    """Load the policy of every tenant that has a file, and look at its agents, as a first start would.

    Misconfigured lists what is wrong, and in which place.
    """
    checker = PolicyChecker(config, agents_of_all(config))
    operator: PolicyDocument | None = None
    if config.operator_policy is not None:
        path = config.path(config.operator_policy)
        operator = checker.layer(OPERATOR, read_policy_file(path, "operator_policy"), str(path))
    tenants: dict[str, Tenant] = {}
    for name, settings in config.tenants.items():
        if settings.policy_file is None:
            continue
        path = config.path(settings.policy_file)
        document = checker.layer(name, read_policy_file(path, f"tenants.{name}.policy"), str(path))
        policy = checker.together(name, document, operator)
        model, agents = config.model_of(name), checker.agents[name]
        tenants[name] = Tenant(name, policy, model, agents, config.sandbox.image_rule)
    return tenants
