"""What the cluster is to limit, of one tenant or of all that share a namespace, by policies and the configuration.

Loaded on demand: what it imports needs the client of Kubernetes.
"""

from collections.abc import Sequence
from itertools import islice

import structlog

from gateway.config.config import Config
from gateway.errors import AirlockError
from gateway.policy.document import QuotasSection
from gateway.tenancy.tenants import Tenants
from sandbox.engines.kubernetes.allowance import Allowance, Allowances
from sandbox.sandbox import SandboxLimits

log = structlog.get_logger(__name__)
# Of whose policies the largest sandbox is looked for; a larger one, of another tenant, counts once it is asked for.
_TENANTS = 64


def cluster_limits(config: Config, tenants: Tenants) -> Allowances:
    """Return what says how much a tenant, or all of them, may have on the cluster; None where no policy loads."""
    settings = config.sandbox

    async def of_policies(names: Sequence[str]) -> Sequence[tuple[QuotasSection, SandboxLimits]]:
        found = []
        for name in names:
            try:
                tenant = await tenants.named(name)
            except AirlockError as error:  # its own calls get the error
                log.debug("a policy does not count for the cluster's limits", tenant=name, error=str(error))
                continue
            found.append((tenant.policy.document.quotas, tenant.sandbox_spec("").limits))
        return found

    async def allowance(tenant: str | None) -> Allowance | None:
        found = await of_policies([tenant] if tenant is not None else list(islice(config.tenants, _TENANTS)))
        if not found:
            return None
        threads = max(quotas.threads for quotas, _ in found)
        if tenant is not None:
            allowed = Allowance(settings.max_live_per_tenant, threads, found[0][1])
        else:
            allowed = Allowance(settings.max_live + settings.pool_limit, threads * len(config.tenants), found[0][1])
        for _, limits in found:
            allowed = allowed.covering(limits)
        return allowed

    return allowance
