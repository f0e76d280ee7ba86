"""The controllers of extensions.agents.x-k8s.io/v1beta1: pools of warm Sandboxes, claims of them, and templates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.agent_sandbox import CLAIM_UID, POD_NAME, POOL, PREFIX, TEMPLATE_HASH
from tests.kubernetes.controllers import (
    Controller,
    Key,
    condition,
    condition_of,
    controller_of,
    is_controlled_by,
    is_ready,
    name_hash,
    reference,
)
from tests.kubernetes.statuses import ApiError
from tests.kubernetes.store import Change, Made, copied

ASSIGNED = PREFIX + "sandbox-name"
LAUNCH = PREFIX + "launch-type"
TEMPLATE = PREFIX + "sandbox-template-ref"
_BLUEPRINT = ("podTemplate", "volumeClaimTemplates", "service")
_PENDING_S = 0.02


class _Waiting(Exception):
    """What a claim waits for, as its Ready condition says."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _blueprint(template: Made) -> dict[str, Any]:
    """Return what a Sandbox takes from a template, with what the controller makes safe by default."""
    spec = copied({key: template["spec"][key] for key in _BLUEPRINT if key in template["spec"]})
    pod = spec["podTemplate"]["spec"]
    pod.setdefault("automountServiceAccountToken", False)
    managed = template["spec"].get("networkPolicyManagement", "Managed") == "Managed"
    if managed and "networkPolicy" not in template["spec"] and "dnsPolicy" not in pod:
        pod |= {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]}}
    return spec


class WarmPoolController(Controller):
    """Keeps as many unclaimed Sandboxes as a pool says; it counts them in its cache, so a stale one makes too many."""

    watched = (kinds.WARM_POOL, kinds.SANDBOX, kinds.SANDBOX_TEMPLATE)
    reconciled = kinds.WARM_POOL

    def keys_of(self, change: Change) -> Iterator[Key]:
        yield from super().keys_of(change)
        if change.kind == kinds.SANDBOX_TEMPLATE:
            namespace = change.made["metadata"]["namespace"]
            for pool in self.cache.all(kinds.WARM_POOL, namespace):
                yield (kinds.WARM_POOL, namespace, pool["metadata"]["name"])

    def reconcile(self, made: Made) -> float | None:
        metadata, spec = made["metadata"], made["spec"]
        if "deletionTimestamp" in metadata:
            return None
        hashed = name_hash(metadata["name"])
        held = [
            one
            for one in self.cache.all(kinds.SANDBOX, metadata["namespace"])
            if one["metadata"].get("labels", {}).get(POOL) == hashed and is_controlled_by(one, made)
        ]
        held = [one for one in held if "deletionTimestamp" not in one["metadata"]]
        template = self.cache.find(kinds.SANDBOX_TEMPLATE, metadata["namespace"], spec["sandboxTemplateRef"]["name"])
        for _ in range(spec["replicas"] - len(held) if template is not None else 0):
            self.create(kinds.SANDBOX, self._sandbox(made, template or {}, hashed))
        for extra in sorted(held, key=is_ready)[: max(0, len(held) - spec["replicas"])]:
            self.delete(kinds.SANDBOX, extra)
        status = {"replicas": len(held), "readyReplicas": sum(map(is_ready, held)), "selector": f"{POOL}={hashed}"}
        self.write_status(kinds.WARM_POOL, made, {**status, "observedGeneration": metadata["generation"]})
        return None

    def _sandbox(self, pool: Made, template: Made, hashed: str) -> Made:
        labels = {POOL: hashed, TEMPLATE_HASH: name_hash(template["metadata"]["name"]), LAUNCH: "warm"}
        metadata = {
            "generateName": f"{pool['metadata']['name']}-",
            "namespace": pool["metadata"]["namespace"],
            "labels": {**labels, PREFIX + "created-by": "controller"},
            "annotations": {TEMPLATE: template["metadata"]["name"]},
            "ownerReferences": [reference(kinds.WARM_POOL, pool)],
        }
        return {"metadata": metadata, "spec": _blueprint(template)}


class ClaimController(Controller):
    """Gives each claim a Sandbox: one of its pool, by compare-and-swap, or a new one."""

    watched = (kinds.SANDBOX_CLAIM, kinds.SANDBOX, kinds.WARM_POOL, kinds.SANDBOX_TEMPLATE)
    reconciled = kinds.SANDBOX_CLAIM

    def keys_of(self, change: Change) -> Iterator[Key]:
        yield from super().keys_of(change)
        if change.kind in {kinds.WARM_POOL, kinds.SANDBOX_TEMPLATE} and change.old is None:
            namespace = change.made["metadata"]["namespace"]
            for claim in self.cache.all(kinds.SANDBOX_CLAIM, namespace):
                yield (kinds.SANDBOX_CLAIM, namespace, claim["metadata"]["name"])

    def reconcile(self, made: Made) -> float | None:
        if "deletionTimestamp" in made["metadata"]:
            return None
        lifecycle = made["spec"].get("lifecycle", {})
        left_s = None
        if "shutdownTime" in lifecycle:
            left_s = (dt.datetime.fromisoformat(lifecycle["shutdownTime"]) - dt.datetime.now(dt.UTC)).total_seconds()
            if left_s <= 0:
                self._expire(made, lifecycle.get("shutdownPolicy", "Retain"))
                return None
        again_s, sandbox = left_s, None
        try:
            sandbox = self._found(made) or self._adopted(made) or self._created(made)
            ready = condition_of(sandbox, "Ready")
            values = (ready["status"], ready["reason"], ready["message"]) if ready else _NOT_READY
        except _Waiting as waiting:
            values, again_s = ("False", waiting.reason, str(waiting)), _PENDING_S
        except ApiError as error:
            if error.code == 409:
                why = f"{error.message}; the next pass retries from a converged view"
                values, again_s = ("False", "AdoptionConflict", why), _PENDING_S
            else:
                values, again_s = ("False", "ReconcilerError", f"Error seen: {error.message}"), 0.1
        status: dict[str, Any] = {"conditions": [condition(made, "Ready", *values)]}
        if sandbox is not None:
            addresses = sandbox.get("status", {}).get("podIPs", [])
            status["sandbox"] = {"name": sandbox["metadata"]["name"], **({"podIPs": addresses} if addresses else {})}
            status["conditions"] += [item for item in [condition_of(sandbox, "Finished")] if item]
        self.write_status(kinds.SANDBOX_CLAIM, made, status)
        return again_s

    def _found(self, made: Made) -> Made | None:
        """Return the Sandbox that the claim already has."""
        metadata = made["metadata"]
        known = (
            made.get("status", {}).get("sandbox", {}).get("name"),
            metadata.get("annotations", {}).get(ASSIGNED),
            metadata["name"],
        )
        for name in filter(None, known):
            sandbox = self.cache.find(kinds.SANDBOX, metadata["namespace"], name)
            if sandbox is not None and is_controlled_by(sandbox, made):
                return sandbox
        return None

    def _adopted(self, made: Made) -> Made | None:
        metadata, pool_name = made["metadata"], made["spec"]["warmPoolRef"]["name"]
        if self.cache.find(kinds.WARM_POOL, metadata["namespace"], pool_name) is None:
            raise _Waiting("WarmPoolNotFound", f'SandboxWarmPool "{pool_name}" not found')
        if made["spec"].get("env") or made["spec"].get("volumeClaimTemplates"):
            return None  # these make a new Sandbox
        candidates = [
            one
            for one in self.cache.all(kinds.SANDBOX, metadata["namespace"])
            if _is_adoptable(one, pool_name) and one.get("status", {}).get("podIPs")
        ]
        if not candidates:
            return None
        chosen = max(candidates, key=is_ready)
        self.patch(kinds.SANDBOX_CLAIM, made, {"metadata": {"annotations": {ASSIGNED: chosen["metadata"]["name"]}}})
        uid = {CLAIM_UID: metadata["uid"]}
        extra = made["spec"].get("additionalPodMetadata", {})
        template = {"labels": {**uid, **extra.get("labels", {})}, "annotations": extra.get("annotations", {})}
        change = {
            "metadata": {
                "resourceVersion": chosen["metadata"]["resourceVersion"],
                "labels": {**uid, POOL: None, LAUNCH: "warm"},
                "annotations": {POD_NAME: chosen["metadata"]["name"]},
                "ownerReferences": [reference(kinds.SANDBOX_CLAIM, made)],
            },
            "spec": {"podTemplate": {"metadata": template}},
        }
        return self.patch(kinds.SANDBOX, chosen, change)

    def _created(self, made: Made) -> Made:
        metadata = made["metadata"]
        pool = self.cache.find(kinds.WARM_POOL, metadata["namespace"], made["spec"]["warmPoolRef"]["name"]) or {}
        name = pool["spec"]["sandboxTemplateRef"]["name"]
        template = self.cache.find(kinds.SANDBOX_TEMPLATE, metadata["namespace"], name)
        if template is None:
            raise _Waiting("TemplateNotFound", f'SandboxTemplate "{name}" not found')
        spec = _blueprint(template)
        _inject(spec["podTemplate"]["spec"], made, template["spec"].get("envVarsInjectionPolicy", "Disallowed"))
        if made["spec"].get("volumeClaimTemplates"):
            spec["volumeClaimTemplates"] = made["spec"]["volumeClaimTemplates"]
        own = {"name": metadata["name"], "namespace": metadata["namespace"]}
        own |= {"labels": {CLAIM_UID: metadata["uid"], TEMPLATE_HASH: name_hash(name), LAUNCH: "cold"}}
        own |= {"annotations": {TEMPLATE: name}, "ownerReferences": [reference(kinds.SANDBOX_CLAIM, made)]}
        try:
            return self.create(kinds.SANDBOX, {"metadata": own, "spec": spec})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            message = "Sandbox already created; waiting for cache to converge"
            raise _Waiting("SandboxCreatePending", message) from None

    def _expire(self, made: Made, policy: str) -> None:
        sandbox = self._found(made)
        if sandbox is not None:
            self.delete(kinds.SANDBOX, sandbox)
        if policy == "Retain":
            values = ("False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated.")
            self.write_status(kinds.SANDBOX_CLAIM, made, {"conditions": [condition(made, "Ready", *values)]})
        else:
            self.delete(kinds.SANDBOX_CLAIM, made)


_NOT_READY = ("False", "SandboxNotReady", "Sandbox is not ready")


def _is_adoptable(sandbox: Made, pool_name: str) -> bool:
    owner, labels = controller_of(sandbox), sandbox["metadata"].get("labels", {})
    return bool(
        "deletionTimestamp" not in sandbox["metadata"]
        and POOL in labels
        and TEMPLATE_HASH in labels
        and owner is not None
        and (owner["kind"], owner["name"]) == ("SandboxWarmPool", pool_name)
    )


def _inject(pod: Made, claim: Made, policy: str) -> None:
    variables = claim["spec"].get("env", ())
    if variables and policy == "Disallowed":
        why = "environment variable injection is not allowed by the template policy"
        raise _Waiting("EnvVarsInjectionRejected", f"environment variable injection rejected: {why}")
    for variable in variables:
        name = variable.get("containerName", pod["containers"][0]["name"])
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            if container["name"] == name:
                kept = [item for item in container.get("env", ()) if item["name"] != variable["name"]]
                container["env"] = [*kept, {"name": variable["name"], "value": variable["value"]}]


class TemplateController(Controller):
    """Labels templates, and gives each the network policy that it asks for or the controller's own."""

    watched = (kinds.SANDBOX_TEMPLATE, kinds.NETWORK_POLICY)
    reconciled = kinds.SANDBOX_TEMPLATE

    def reconcile(self, made: Made) -> float | None:
        metadata = made["metadata"]
        hashed = {TEMPLATE_HASH: name_hash(metadata["name"])}
        if metadata.get("labels", {}).get(TEMPLATE_HASH) != hashed[TEMPLATE_HASH]:
            self.patch(kinds.SANDBOX_TEMPLATE, made, {"metadata": {"labels": hashed}})
        name = f"{metadata['name']}-network-policy"
        held = self.cache.find(kinds.NETWORK_POLICY, metadata["namespace"], name)
        if made["spec"].get("networkPolicyManagement", "Managed") == "Unmanaged":
            if held is not None and is_controlled_by(held, made):
                self.delete(kinds.NETWORK_POLICY, held)
            return None
        rules = made["spec"].get("networkPolicy", _DEFAULT_POLICY)
        spec = {"podSelector": {"matchLabels": hashed}, "policyTypes": ["Ingress", "Egress"], **rules}
        if held is None:
            own = {"name": name, "namespace": metadata["namespace"]}
            own |= {"ownerReferences": [reference(kinds.SANDBOX_TEMPLATE, made)]}
            self.create(kinds.NETWORK_POLICY, {"metadata": own, "spec": spec})
        elif held["spec"] != spec and is_controlled_by(held, made):
            self.patch(kinds.NETWORK_POLICY, held, {"spec": spec})
        return None


# Out to all but private ranges, in from the router alone.
_DEFAULT_POLICY = {
    "ingress": [
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
                    "podSelector": {"matchLabels": {"app": "sandbox-router"}},
                }
            ]
        }
    ],
    "egress": [
        {
            "to": [
                {
                    "ipBlock": {
                        "cidr": "0.0.0.0/0",
                        "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"],
                    }
                },
                {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
            ]
        }
    ],
}
