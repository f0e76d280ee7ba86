"""Tenants: their policy, their agents, and the sandboxes they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gateway.agents.agents import agents_of_all
from gateway.config.agent_settings import AgentSettings
from gateway.config.config import Config
from gateway.config.model_settings import CONCURRENT_INFERENCES, ModelSettings
from gateway.errors import Unauthenticated
from gateway.policy import Policy, PolicyDocument
from gateway.policy_versions.policies import InForce, Policies
from gateway.policy_versions.policy_check import PolicyChecker, read_policy_file
from gateway.storage.policy_store import OPERATOR
from sandbox.image_names import ANY_IMAGE, ImageRule
from sandbox.sandbox import SandboxLimits, SandboxSpec

_MIB = 1024 * 1024
# The root of a sandbox is read-only, in any image.
_READ_ONLY_HOME = {"HOME": "/", "XDG_CACHE_HOME": "/tmp/.cache", "npm_config_cache": "/tmp/.npm"}  # noqa: S108 - in the sandbox


@dataclass(frozen=True)
class Tenant:
    """A tenant with its policy, its model, and the agents that it can name; every model in them is complete.

    `policy` is the one in force when it is read, unless the tenant is pinned. `images` are those that the configuration
    allows to any tenant. `concurrent_inferences` is the limit in this process.
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
        return self.source if isinstance(self.source, Policy) else self.source.policy

    @property
    def policy_reference(self) -> str:
        """The texts of the policy, for `Tenants.at`; "" if the policy never changes."""
        return "" if isinstance(self.source, Policy) else self.source.reference

    def pinned(self) -> Tenant:
        """Return this tenant pinned to the policy that is in force now."""
        return self if isinstance(self.source, Policy) else replace(self, source=replace(self.source))

    def sandbox_spec(self, thread: str) -> SandboxSpec:
        policy = self.policy
        section = policy.document.sandbox
        return SandboxSpec(
            tenant=self.name,
            thread=thread,
            image=section.image,
            runtime=section.runtime,
            refused=self.images.refusal(section.image) or section.image_rule.refusal(section.image) or "",
            env=_READ_ONLY_HOME if section.home == "read_only" else {},
            refuse_hard_links=policy.tells_paths_apart,
            idle_timeout_s=section.idle_timeout_s,
            limits=SandboxLimits(
                memory_bytes=section.memory_mib * _MIB,
                cpus=section.cpus,
                pids=section.pids,
                workspace_bytes=section.workspace_mib * _MIB,
                workspace_files=section.workspace_files,
                disk_reserve_bytes=self.disk_reserve_bytes,
                tmp_bytes=section.tmp_mib * _MIB,
                seccomp_filters=section.seccomp_filters,
            ),
        )


class Tenants:
    """The tenants of a gateway. Each policy is loaded on first use."""

    def __init__(self, config: Config, policies: Policies) -> None:
        self._policies = policies
        agents = agents_of_all(config)
        # All of each tenant but its policy.
        self._tenants = {
            name: partial(
                Tenant,
                name,
                model=config.model_of(name),
                agents=agents[name],
                images=config.sandbox.image_rule,
                concurrent_inferences=settings.concurrent_inferences,
                disk_reserve_bytes=config.sandbox.disk_reserve_mib * _MIB,
            )
            for name, settings in config.tenants.items()
        }

    def __len__(self) -> int:
        return len(self._tenants)

    async def named(self, name: str) -> Tenant:
        """Return a tenant with the policy in force; Unauthenticated if the tenant is no longer configured."""
        tenant = self._of(name)
        return tenant(await self._policies.in_force(name))

    async def at(self, name: str, reference: str) -> Tenant:
        """Return a tenant pinned to a former policy, by the `policy_reference` of that time."""
        tenant = self._of(name)
        return tenant(await self._policies.at(name, reference))

    def _of(self, name: str) -> Callable[[InForce], Tenant]:
        if name not in self._tenants:
            raise Unauthenticated("the API key's tenant is not configured on this gateway: ask the operator")
        return self._tenants[name]


def load_tenants(config: Config) -> Mapping[str, Tenant]:
    """Load and check the policy file and the agents of every tenant, as at a first start; raises Misconfigured."""
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
