"""What it means that the cluster forbids something, and what to do about it."""

from sandbox.errors import EngineFull, RuntimeMissing, SandboxUnavailable


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
