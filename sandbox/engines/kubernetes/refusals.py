"""What it means that the cluster forbids something or does not answer, and what to do about it."""

import aiohttp

from sandbox.errors import EngineFull, EngineUnavailable, RuntimeMissing, SandboxUnavailable

_SHOWN = 500


def unconfigured(error: BaseException, *, in_cluster: bool) -> EngineUnavailable:
    """Return the error of a kubeconfig, or of the configuration of a Pod, that cannot be used."""
    if in_cluster:
        return EngineUnavailable(
            f"no Kubernetes cluster is configured: this process runs in none ({error}). Run the gateway in the "
            "cluster with a service account, or set sandbox.kubernetes.kubeconfig"
        )
    return EngineUnavailable(
        f"sandbox.kubernetes.kubeconfig or .context cannot be used: {error or 'the context is not in it'}"
    )


def unreachable(host: str, error: BaseException) -> EngineUnavailable:
    """Return the error of an API that does not answer, or that is not trusted."""
    said = str(error)[:_SHOWN] or type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError):
        return EngineUnavailable(
            f"the Kubernetes API at {host} has a certificate that is not accepted: {said}; correct the "
            "certificate-authority of sandbox.kubernetes.kubeconfig, or the clock of this machine"
        )
    return EngineUnavailable(
        f"the Kubernetes API at {host} does not answer: {said}; check that it runs and that the network lets "
        "the gateway reach it"
    )


def forbidden(verb: str, plural: str, namespace: str, said: str) -> SandboxUnavailable:
    """Return the error of a request that the cluster forbids, or of one of its controllers."""
    if "exceeded quota" in said or "maximum" in said:
        return EngineFull(
            f"namespace {namespace!r} has no room left: {said}. Remove sandboxes or workspaces, or raise its "
            "ResourceQuota or LimitRange"
        )
    if "being terminated" in said:
        return SandboxUnavailable(
            f"namespace {namespace!r} is being deleted: wait until it is gone. One for all tenants must be created "
            "again, or another one be set in sandbox.kubernetes.namespace"
        )
    if "RuntimeClass" in said:
        return RuntimeMissing(f"{said}: install it, or set another runtime in the policy's sandbox section")
    if "PodSecurity" in said:
        return SandboxUnavailable(
            f"{said}. Label namespace {namespace!r} with pod-security.kubernetes.io/enforce=baseline: the daemon "
            "starts as root"
        )
    if "cannot" in said:
        return SandboxUnavailable(
            f"the gateway's account lacks a permission: grant {verb} on {plural} in namespace {namespace!r} ({said})"
        )
    return SandboxUnavailable(f"the cluster refuses to {verb} {plural}: {said}")
