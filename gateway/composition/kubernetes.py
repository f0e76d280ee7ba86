"""The cluster of `engine: kubernetes` as a configuration names it. Needs the extra `kubernetes` of the distribution."""

from gateway.config.config import Config
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.sandbox import digest


def site_of(config: Config, instance: str) -> Site:
    """Return where an instance makes its sandboxes."""
    own = config.sandbox.kubernetes
    return Site(
        instance=instance,
        namespace=own.namespace,
        namespace_per_tenant=own.namespace_per_tenant,
        gateway_namespace=own.gateway_namespace or "",
        gateway_selector=own.gateway_selector,
        gateway_cidrs=[str(cidr) for cidr in own.gateway_cidrs],
        runtime_image=config.sandbox.runtime_image,
        runtime_volume=own.runtime_volume,
        storage_class=own.storage_class,
        node_selector=own.node_selector,
        tolerations=own.tolerations,
        topology_spread=own.topology_spread,
        image_pull_secrets=own.image_pull_secrets,
        tenants={digest(name): one.kubernetes.model_dump(exclude_none=True) for name, one in config.tenants.items()},
        mode=own.mode,
    )


def requests_of(config: Config) -> KubernetesRequests:
    """Return the way to the cluster; the caller closes it."""
    own = config.sandbox.kubernetes
    return KubernetesRequests(None if own.kubeconfig is None else config.path(own.kubeconfig), own.context)
