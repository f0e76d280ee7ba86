"""Tenants: who they are, what their policy says, and the sandbox it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config import Config, ModelSettings
from gateway.errors import Misconfigured, Unauthenticated
from gateway.policy import Policy, PolicyError, load_policy
from sandbox.engine import SandboxLimits, SandboxSpec

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Tenant:
    """A tenant with its policy in force."""

    name: str
    policy: Policy
    model: ModelSettings

    def sandbox_spec(self, thread: str) -> SandboxSpec:
        """Return what a sandbox of this tenant is made of."""
        asked = self.policy.document.sandbox
        return SandboxSpec(
            tenant=self.name,
            thread=thread,
            image=asked.image,
            runtime=asked.runtime,
            limits=SandboxLimits(
                memory_bytes=asked.memory_mib * _MIB,
                cpus=asked.cpus,
                pids=asked.pids,
                workspace_bytes=asked.workspace_mib * _MIB,
                tmp_bytes=asked.tmp_mib * _MIB,
            ),
        )


def load_tenants(config: Config) -> Mapping[str, Tenant]:
    """Load every tenant's policy; Misconfigured lists what is wrong in which file and line."""
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
        tenants[name] = Tenant(name, policy, config.model_of(name))
    return tenants


def tenant_named(tenants: Mapping[str, Tenant], name: str) -> Tenant:
    """Return a tenant; a key that outlived its tenant's configuration is not known any more."""
    if name not in tenants:
        raise Unauthenticated("this key's tenant is not configured here: ask the operator")
    return tenants[name]
