"""The Pod Security Standards "baseline" and "restricted", with the words of the real admission plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Spec = Mapping[str, Any]
_RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip


def violations(spec: Spec, level: str) -> list[str]:
    """Return what a Pod does that a level forbids; "privileged" forbids nothing."""
    if level == "privileged":
        return []
    return [*_baseline(spec, level), *(_restricted(spec) if level == "restricted" else ())]


def _containers(spec: Spec) -> Sequence[Mapping[str, Any]]:
    return (*spec.get("initContainers", ()), *spec["containers"])


def _listed(names: Sequence[str], what: str = "container") -> str:
    plural = "s" if len(names) > 1 else ""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"{what}{plural} {quoted}"


def _baseline(spec: Spec, level: str) -> Iterator[str]:
    host = [field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    if host:
        yield f"host namespaces ({', '.join(f'{field}=true' for field in host)})"
    privileged = [item["name"] for item in _containers(spec) if item.get("securityContext", {}).get("privileged")]
    if privileged:
        yield f"privileged ({_listed(privileged)} must not set securityContext.privileged=true)"
    if level == "baseline":
        for item in _containers(spec):
            added = set(item.get("securityContext", {}).get("capabilities", {}).get("add", ())) - _BASELINE_CAPABILITIES
            if added:
                shown = ", ".join(f'"{name}"' for name in sorted(added))
                where = f'container "{item["name"]}" must not include {shown} in securityContext.capabilities.add'
                yield f"non-default capabilities ({where})"
    paths = [volume["name"] for volume in spec.get("volumes", ()) if "hostPath" in volume]
    if paths:
        yield f"hostPath volumes ({_listed(paths, 'volume')})"
    ports = [item["name"] for item in _containers(spec) if any(port.get("hostPort") for port in item.get("ports", ()))]
    if ports:
        yield f"hostPort ({_listed(ports)} uses a hostPort)"


def _restricted(spec: Spec) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    contexts = [(item["name"], item.get("securityContext", {})) for item in _containers(spec)]
    if names := [name for name, own in contexts if own.get("allowPrivilegeEscalation") is not False]:
        wanted = "must set securityContext.allowPrivilegeEscalation=false"
        yield f"allowPrivilegeEscalation != false ({_listed(names)} {wanted})"
    wrong = []
    if names := [name for name, own in contexts if "ALL" not in own.get("capabilities", {}).get("drop", ())]:
        wrong.append(f'{_listed(names)} must set securityContext.capabilities.drop=["ALL"]')
    for name, own in contexts:
        if added := sorted(set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}):
            shown = ", ".join(f'"{capability}"' for capability in added)
            wrong.append(f'container "{name}" must not include {shown} in securityContext.capabilities.add')
    if wrong:
        yield f"unrestricted capabilities ({'; '.join(wrong)})"
    if other := [item["name"] for item in spec.get("volumes", ()) if not (set(item) - {"name"}) <= _RESTRICTED_VOLUMES]:
        yield f"restricted volume types ({_listed(other, 'volume')})"
    if names := [name for name, own in contexts if not own.get("runAsNonRoot", pod.get("runAsNonRoot"))]:
        yield f"runAsNonRoot != true (pod or {_listed(names)} must set securityContext.runAsNonRoot=true)"
    roots = [name for name, own in contexts if own.get("runAsUser") == 0]
    if pod.get("runAsUser") == 0 or roots:
        yield f"runAsUser=0 ({_listed(roots) if roots else 'pod'} must not set runAsUser=0)"
    kept = ("RuntimeDefault", "Localhost")
    profiles = ((name, own.get("seccompProfile", pod.get("seccompProfile", {}))) for name, own in contexts)
    if names := [name for name, profile in profiles if profile.get("type") not in kept]:
        wanted = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        yield f"seccompProfile (pod or {_listed(names)} {wanted})"
