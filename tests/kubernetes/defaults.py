"""What the API server fills in where a request says nothing, as a posture that is read back shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.kinds import Kind
from tests.kubernetes.schemas import schema_of, with_defaults
from tests.kubernetes.store import Made, Store

_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for why in ("not-ready", "unreachable")
]
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def fill_in(kind: Kind, made: Made, store: Store) -> Made:
    """Return an object with the defaults of its kind, and those that admission plugins set."""
    if kind.custom:
        made = with_defaults(schema_of(kind.schema), made)
    filler = _FILLERS.get(kind)
    if filler is not None:
        filler(made, store)
    return made


def _fill_pod(made: Made, store: Store) -> None:
    spec = made.setdefault("spec", {})
    namespace = made["metadata"]["namespace"]
    for key, value in {
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": True,
        "serviceAccountName": "default", "tolerations": [dict(toleration) for toleration in _TOLERATIONS],
        "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
    }.items():  # fmt: skip
        spec.setdefault(key, value)
    spec["serviceAccount"] = spec["serviceAccountName"]
    ranges = [item for held in store.all(kinds.LIMIT_RANGE, namespace) for item in held["spec"]["limits"]]
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        _fill_container(container, [item for item in ranges if item["type"] == "Container"])
    for volume in spec.get("volumes", ()):
        for source, field in (("secret", "defaultMode"), ("configMap", "defaultMode"), ("projected", "defaultMode")):
            if source in volume:
                volume[source].setdefault(field, 0o644)
    account = store.find(kinds.SERVICE_ACCOUNT, namespace, spec["serviceAccountName"]) or {}
    if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        _mount_token(spec)
    runtime = store.find(kinds.RUNTIME_CLASS, "", spec.get("runtimeClassName", ""))
    if runtime and "overhead" in runtime:
        spec["overhead"] = runtime["overhead"].get("podFixed", {})
    made["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _fill_container(container: dict[str, Any], ranges: list[dict[str, Any]]) -> None:
    tag = container.get("image", "").rpartition("/")[2]
    latest = "@" not in tag and (":" not in tag or tag.endswith(":latest"))
    for key, value in {
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if latest else "IfNotPresent", "resources": {},
    }.items():  # fmt: skip
        container.setdefault(key, value)
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for probe in ("readinessProbe", "startupProbe", "livenessProbe"):
        if probe in container:
            for key, value in {
                "timeoutSeconds": 1,
                "periodSeconds": 10,
                "successThreshold": 1,
                "failureThreshold": 3,
            }.items():
                container[probe].setdefault(key, value)
    resources = container["resources"]
    for item in ranges:
        for key, value in item.get("default", {}).items():
            resources.setdefault("limits", {}).setdefault(key, value)
        for key, value in item.get("defaultRequest", {}).items():
            resources.setdefault("requests", {}).setdefault(key, value)
    for key, value in resources.get("limits", {}).items():
        resources.setdefault("requests", {}).setdefault(key, value)


def _mount_token(spec: dict[str, Any]) -> None:
    """Give each container the service account's token, as the admission plugin does unless a Pod opts out."""
    sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]
    spec.setdefault("volumes", []).append(
        {"name": "kube-api-access", "projected": {"sources": sources, "defaultMode": 420}}
    )
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        mount = {"name": "kube-api-access", "readOnly": True, "mountPath": _TOKEN_PATH}
        container.setdefault("volumeMounts", []).append(mount)


def _quality(spec: dict[str, Any]) -> str:
    resources = [container.get("resources", {}) for container in spec.get("containers", ())]
    if not any(resources):
        return "BestEffort"
    whole = all(
        {"cpu", "memory"} <= set(item.get("limits", {})) and item.get("requests") == item["limits"]
        for item in resources
    )
    return "Guaranteed" if whole else "Burstable"


def _fill_claim(made: Made, store: Store) -> None:
    spec = made.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    if "storageClassName" not in spec:
        marked = "storageclass.kubernetes.io/is-default-class"
        for held in store.all(kinds.STORAGE_CLASS):
            if held["metadata"].get("annotations", {}).get(marked) == "true":
                spec["storageClassName"] = held["metadata"]["name"]
    made["metadata"].setdefault("finalizers", []).append("kubernetes.io/pvc-protection")
    made["status"] = {"phase": "Pending"}


def _fill_namespace(made: Made, _: Store) -> None:
    made["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = made["metadata"]["name"]
    made["spec"] = {"finalizers": ["kubernetes"]}
    made["status"] = {"phase": "Active"}


def _fill_secret(made: Made, _: Store) -> None:
    made.setdefault("type", "Opaque")


def _fill_class(made: Made, _: Store) -> None:
    made.setdefault("reclaimPolicy", "Delete")
    made.setdefault("volumeBindingMode", "Immediate")


def _fill_policy(made: Made, _: Store) -> None:
    spec = made.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    spec.setdefault("policyTypes", ["Ingress", *(["Egress"] if "egress" in spec else [])])


def _fill_range(made: Made, _: Store) -> None:
    """Make defaults of a container's maximum, as the API does."""
    for item in made["spec"]["limits"]:
        if item["type"] == "Container":
            defaults = item["default"] = {**item.get("max", {}), **item.get("default", {})}
            item["defaultRequest"] = {**defaults, **item.get("defaultRequest", {})}


_FILLERS: dict[Kind, Callable[[Made, Store], None]] = {
    kinds.POD: _fill_pod,
    kinds.CLAIM: _fill_claim,
    kinds.NAMESPACE: _fill_namespace,
    kinds.SECRET: _fill_secret,
    kinds.STORAGE_CLASS: _fill_class,
    kinds.NETWORK_POLICY: _fill_policy,
    kinds.LIMIT_RANGE: _fill_range,
}
