"""The controller of agents.x-k8s.io/v1beta1: a Sandbox is a Pod, its claims and perhaps a Service.

As the real one does it, with what a gateway must bear: a resumed Sandbox shows its old Suspended condition until its
Pod is ready, and while it is suspended the Pod takes its whole grace.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.controllers import (
    Controller,
    condition,
    condition_of,
    controller_of,
    is_controlled_by,
    name_hash,
    reference,
)
from tests.kubernetes.requests import Target
from tests.kubernetes.statuses import ApiError
from tests.kubernetes.store import Made, copied

PREFIX = "agents.x-k8s.io/"
NAME_HASH = PREFIX + "sandbox-name-hash"
POD_NAME = PREFIX + "pod-name"
POOL = PREFIX + "warm-pool-sandbox"
TEMPLATE_HASH = PREFIX + "sandbox-template-ref-hash"
CLAIM_UID = PREFIX + "claim-uid"


class SandboxController(Controller):
    """Reconciles Sandboxes."""

    watched = (kinds.SANDBOX, kinds.POD, kinds.SERVICE)
    reconciled = kinds.SANDBOX

    def reconcile(self, made: Made) -> float | None:
        if "deletionTimestamp" in made["metadata"]:
            return None
        left_s = _left_s(made)
        if left_s is not None and left_s <= 0:
            self._expire(made)
            return None
        error, pod = "", None
        try:
            self._give_claims(made)
            pod = self._give_pod(made)
        except ApiError as refused:
            error = refused.message
        service = self._give_service(made)
        self.write_status(kinds.SANDBOX, made, self._status(made, pod, service, error))
        return 0.1 if error else left_s

    def _give_claims(self, made: Made) -> None:
        metadata = made["metadata"]
        for template in made["spec"].get("volumeClaimTemplates", ()):
            name = f"{template['metadata']['name']}-{metadata['name']}"
            held = self.requests.store.find(kinds.CLAIM, metadata["namespace"], name)
            if held is None:
                labels = {**template["metadata"].get("labels", {}), NAME_HASH: name_hash(metadata["name"])}
                own = {"name": name, "namespace": metadata["namespace"], "labels": labels}
                own["ownerReferences"] = [reference(kinds.SANDBOX, made)]
                self.create(kinds.CLAIM, {"metadata": own, "spec": template["spec"]})
            elif not is_controlled_by(held, made):
                owner = controller_of(held) or {"kind": "nothing", "name": ""}
                raise ApiError(0, "", f'PVC "{name}" is owned by {owner["kind"]}/{owner["name"]}')

    def _give_pod(self, made: Made) -> Made | None:
        metadata = made["metadata"]
        name = metadata.get("annotations", {}).get(POD_NAME, metadata["name"])
        pod = self.cache.find(kinds.POD, metadata["namespace"], name)
        if made["spec"]["operatingMode"] == "Suspended":
            if pod is not None and is_controlled_by(pod, made) and "deletionTimestamp" not in pod["metadata"]:
                self.delete(kinds.POD, pod)
            elif pod is None:
                self._name_pod(made, None)
            return pod
        if pod is None:
            pod = self._made_pod(made)
        if not is_controlled_by(pod, made):
            owner = controller_of(pod) or {"kind": "nothing", "name": "", "uid": ""}
            why = f'pod "{name}" is owned by {owner["kind"]}/{owner["name"]} (UID: {owner["uid"]}), not by sandbox'
            raise ApiError(0, "", f'{why} "{metadata["name"]}"')
        wanted = _labels_of(made)
        if any(pod["metadata"].get("labels", {}).get(key) != value for key, value in wanted.items()) or (
            POOL in pod["metadata"].get("labels", {}) and POOL not in wanted
        ):
            self.patch(kinds.POD, pod, {"metadata": {"labels": {POOL: None, **wanted}}})
        self._name_pod(made, pod["metadata"]["name"])
        return pod

    def _made_pod(self, made: Made) -> Made:
        """Create the Pod, or return the one that the cache did not know of."""
        try:
            return self.create(kinds.POD, _pod_of(made))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return self.requests.get(Target(kinds.POD, made["metadata"]["namespace"], made["metadata"]["name"]))

    def _name_pod(self, made: Made, name: str | None) -> None:
        if made["metadata"].get("annotations", {}).get(POD_NAME) != name:
            self.patch(kinds.SANDBOX, made, {"metadata": {"annotations": {POD_NAME: name}}})

    def _give_service(self, made: Made) -> Made | None:
        metadata = made["metadata"]
        held = self.cache.find(kinds.SERVICE, metadata["namespace"], metadata["name"])
        if held is None and made["spec"].get("service"):
            hashed = {NAME_HASH: name_hash(metadata["name"])}
            own = {"name": metadata["name"], "namespace": metadata["namespace"], "labels": hashed}
            own["ownerReferences"] = [reference(kinds.SANDBOX, made)]
            return self.create(kinds.SERVICE, {"metadata": own, "spec": {"clusterIP": "None", "selector": hashed}})
        return held

    def _expire(self, made: Made) -> None:
        pod = self.cache.find(kinds.POD, made["metadata"]["namespace"], made["metadata"]["name"])
        if pod is not None and is_controlled_by(pod, made):
            self.delete(kinds.POD, pod)
        if made["spec"].get("shutdownPolicy") == "Delete":
            self.delete(kinds.SANDBOX, made)
        else:
            expired = condition(made, "Ready", "False", "SandboxExpired", "Sandbox has expired")
            self.write_status(kinds.SANDBOX, made, {"conditions": [expired]})

    def _status(self, made: Made, pod: Made | None, service: Made | None, error: str) -> Made:
        conditions = [_suspended(made, pod, error), *_finished(made, pod), *_scheduled(made, pod, error)]
        conditions.append(_ready(made, pod, service, error))
        status: dict[str, Any] = {"conditions": conditions}
        if pod is not None:
            status["selector"] = f"{NAME_HASH}={name_hash(made['metadata']['name'])}"
            if addresses := [item["ip"] for item in pod["status"].get("podIPs", ())]:
                status["podIPs"] = addresses
            if pod["spec"].get("nodeName"):
                status["nodeName"] = pod["spec"]["nodeName"]
        if service is not None:
            name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
            status |= {"service": name, "serviceFQDN": f"{name}.{namespace}.svc.cluster.local"}
        return status


def _left_s(made: Made) -> float | None:
    if "shutdownTime" not in made["spec"]:
        return None
    return (dt.datetime.fromisoformat(made["spec"]["shutdownTime"]) - dt.datetime.now(dt.UTC)).total_seconds()


def _labels_of(made: Made) -> dict[str, str]:
    """Return a Pod's labels: those of the template that are not the system's, and the system's own."""
    template = made["spec"]["podTemplate"].get("metadata", {}).get("labels", {})
    labels = {key: value for key, value in template.items() if not key.startswith((PREFIX, "extensions." + PREFIX))}
    labels[NAME_HASH] = name_hash(made["metadata"]["name"])
    owner = controller_of(made)
    own = made["metadata"].get("labels", {})
    if owner is not None and owner["apiVersion"].startswith(kinds.EXTENSIONS):
        for key in (TEMPLATE_HASH, *([POOL] if owner["kind"] == "SandboxWarmPool" else [])):
            if key in own:
                labels[key] = own[key]
    return labels


def _pod_of(made: Made) -> Made:
    metadata, template = made["metadata"], made["spec"]["podTemplate"]
    spec = copied(template["spec"])
    names = {item["metadata"]["name"] for item in made["spec"].get("volumeClaimTemplates", ())}
    volumes = [volume for volume in spec.get("volumes", ()) if volume["name"] not in names]
    claims = {name: {"claimName": f"{name}-{metadata['name']}"} for name in sorted(names)}
    volumes += [{"name": name, "persistentVolumeClaim": claim} for name, claim in claims.items()]
    if volumes:
        spec["volumes"] = volumes
    annotations = template.get("metadata", {}).get("annotations", {})
    own = {"name": metadata["name"], "namespace": metadata["namespace"], "labels": _labels_of(made)}
    own |= {"annotations": annotations, "ownerReferences": [reference(kinds.SANDBOX, made)]}
    return {"metadata": own, "spec": spec}


def _suspended(made: Made, pod: Made | None, error: str) -> Made:
    old = condition_of(made, "Suspended")
    if made["spec"]["operatingMode"] != "Suspended":
        if old.get("status") == "True" and not _is_pod_ready(pod):
            return old  # seen on a cluster: only Ready can be trusted
        return condition(made, "Suspended", "False", "NotSuspended", "Sandbox is not suspended")
    if pod is None and error:
        message = "Pod state is unknown. Sandbox suspension cannot be confirmed"
        return condition(made, "Suspended", "Unknown", "PodStateUnknown", message)
    if pod is None:
        return condition(made, "Suspended", "True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")
    return condition(made, "Suspended", "False", "PodTerminating", "Pod is terminating. Sandbox is suspending")


def _finished(made: Made, pod: Made | None) -> list[Made]:
    phase = (pod or {"status": {}})["status"].get("phase")
    if phase not in {"Succeeded", "Failed"}:
        return []
    message = "Pod completed successfully" if phase == "Succeeded" else "Pod failed"
    return [condition(made, "Finished", "True", f"Pod{phase}", message)]


def _scheduled(made: Made, pod: Made | None, error: str) -> list[Made]:
    if pod is None:
        message = "Pod state is unknown. Pod scheduling cannot be determined"
        return [condition(made, "PodScheduled", "Unknown", "PodSchedulingUnknown", message)] if error else []
    found = condition_of(pod, "PodScheduled")
    if not found:
        message = "Pod has not reported a PodScheduled condition yet"
        return [condition(made, "PodScheduled", "Unknown", "PodSchedulingUnknown", message)]
    return [
        condition(made, "PodScheduled", found["status"], found.get("reason", "PodScheduled"), found.get("message", ""))
    ]


def _is_pod_ready(pod: Made | None) -> bool:
    if pod is None or pod["status"]["phase"] != "Running" or not pod["status"].get("podIPs"):
        return False
    return bool(condition_of(pod, "Ready").get("status") == "True")


def _ready(made: Made, pod: Made | None, service: Made | None, error: str) -> Made:
    if error:
        return condition(made, "Ready", "False", "ReconcilerError", f"Error seen: {error}")
    if made["spec"]["operatingMode"] == "Suspended":
        message = "Sandbox is suspending" if pod is not None else "Sandbox is suspended"
        return condition(made, "Ready", "False", "SandboxSuspended", message)
    phase = "" if pod is None else pod["status"]["phase"]
    if phase in {"Succeeded", "Failed"}:
        message = "Pod completed successfully" if phase == "Succeeded" else "Pod failed"
        return condition(made, "Ready", "False", f"Pod{phase}", message)
    ready = _is_pod_ready(pod)
    message = "Pod is Ready" if ready else "Pod is Running but not Ready" if phase == "Running" else ""
    message = message or (f"Pod exists with phase: {phase}" if phase else "Pod does not exist")
    if made["spec"].get("service"):
        message += "; Service Exists" if service is not None else "; Service does not exist"
        ready = ready and service is not None
    reason = "DependenciesReady" if ready else "DependenciesNotReady"
    return condition(made, "Ready", str(ready), reason, message)
