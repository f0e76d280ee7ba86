"""What a namespace admits: not while it ends, within its quota and limits, and what its Pod Security level allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from tests.kubernetes import kinds
from tests.kubernetes.kinds import Kind
from tests.kubernetes.pod_security import violations
from tests.kubernetes.quantities import quantity
from tests.kubernetes.statuses import forbidden, not_found
from tests.kubernetes.store import Made, Store, copied

_ENFORCE = "pod-security.kubernetes.io/enforce"


def admit(kind: Kind, made: Made, store: Store) -> None:
    """Raise 403 for an object that its namespace does not admit."""
    if not kind.namespaced:
        return
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
    held = store.find(kinds.NAMESPACE, "", namespace)
    if held is None:
        raise not_found(kinds.NAMESPACE, namespace)
    if held["status"]["phase"] == "Terminating" and kind != kinds.EVENT:
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        error = forbidden(kind, name, why)
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
        error.details = {**error.details, "causes": [{**cause, "field": "metadata.namespace"}]}
        raise error
    if kind == kinds.POD:
        _admit_pod(made, held, store)
    _check_ranges(kind, made, store)
    _check_quotas(kind, made, store)


def _admit_pod(made: Made, namespace: Made, store: Store) -> None:
    name, spec = made["metadata"]["name"], made["spec"]
    if store.find(kinds.SERVICE_ACCOUNT, made["metadata"]["namespace"], spec["serviceAccountName"]) is None:
        where = f"{made['metadata']['namespace']}/{spec['serviceAccountName']}"
        why = f'error looking up service account {where}: serviceaccount "{spec["serviceAccountName"]}" not found'
        raise forbidden(kinds.POD, name, why)
    runtime = spec.get("runtimeClassName")
    if runtime and store.find(kinds.RUNTIME_CLASS, "", runtime) is None:
        raise forbidden(kinds.POD, name, f'pod rejected: RuntimeClass "{runtime}" not found')
    level = namespace["metadata"].get("labels", {}).get(_ENFORCE, "privileged")
    if found := violations(spec, level):
        raise forbidden(kinds.POD, name, f'violates PodSecurity "{level}:latest": {", ".join(found)}')


def _check_ranges(kind: Kind, made: Made, store: Store) -> None:
    for held in store.all(kinds.LIMIT_RANGE, made["metadata"]["namespace"]):
        for item in held["spec"]["limits"]:
            for key, limit in item.get("max", {}).items():
                for value in _limited(kind, made, item["type"], key):
                    if quantity(value) > quantity(limit):
                        why = f"maximum {key} usage per {item['type']} is {limit}, but limit is {value}"
                        raise forbidden(kind, made["metadata"]["name"], why)


def _limited(kind: Kind, made: Made, what: str, key: str) -> Iterator[str]:
    if what == "Container" and kind == kinds.POD:
        for container in _all_containers(made["spec"]):
            if key in container["resources"].get("limits", {}):
                yield container["resources"]["limits"][key]
    if what == "PersistentVolumeClaim" and kind == kinds.CLAIM:
        yield made["spec"]["resources"]["requests"][key]


def _check_quotas(kind: Kind, made: Made, store: Store) -> None:
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
    for held in store.all(kinds.QUOTA, namespace):
        hard = held["spec"].get("hard", {})
        asked = {key: amount for key, amount in _uses(kind, made).items() if key in hard}
        if missing := [key for key in hard if _unsaid(kind, made, key)]:
            names = ",".join(container["name"] for container in _all_containers(made["spec"]))
            listed = "; ".join(f"{key} for: {names}" for key in sorted(missing))
            raise forbidden(kind, name, f"failed quota: {held['metadata']['name']}: must specify {listed}")
        if asked and held.get("status", {}).get("hard") != hard:
            listed = ",".join(sorted(asked))
            raise forbidden(kind, name, f"status unknown for quota: {held['metadata']['name']}, resources: {listed}")
        used = used_of(namespace, hard, store)
        over = sorted(key for key, amount in asked.items() if used[key] + amount > quantity(hard[key]))
        if over:
            parts = (
                "requested: " + ",".join(f"{key}={_shown(asked[key])}" for key in over),
                "used: " + ",".join(f"{key}={_shown(used[key])}" for key in over),
                "limited: " + ",".join(f"{key}={hard[key]}" for key in over),
            )
            raise forbidden(kind, name, f"exceeded quota: {held['metadata']['name']}, {', '.join(parts)}")


def used_of(namespace: str, hard: Mapping[str, str], store: Store) -> dict[str, Decimal]:
    """Return what a namespace uses of each resource that a quota names."""
    used = dict.fromkeys(hard, Decimal(0))
    for kind in (kinds.POD, kinds.CLAIM, kinds.SECRET, kinds.CONFIG_MAP, kinds.SERVICE, kinds.SANDBOX):
        for made in store.all(kind, namespace):
            if made.get("status", {}).get("phase") not in {"Succeeded", "Failed"}:
                for key, amount in _uses(kind, made).items():
                    if key in used:
                        used[key] += amount
    return used


def note_quotas(store: Store) -> None:
    """Write what is used into the status of each quota, as its controller does."""
    for held in store.all(kinds.QUOTA):
        hard = held["spec"].get("hard", {})
        used = used_of(held["metadata"]["namespace"], hard, store)
        noted = copied(held)
        noted["status"] = {"hard": hard, "used": {key: _shown(value) for key, value in used.items()}}
        store.put(kinds.QUOTA, noted)


def _uses(kind: Kind, made: Made) -> dict[str, Decimal]:
    uses = {f"count/{kind.qualified}": Decimal(1)}
    if not kind.group:
        uses[kind.plural] = Decimal(1)
    if kind == kinds.POD:
        for group in ("requests", "limits"):
            for container in _lasting_containers(made["spec"]):
                for key, value in container.get("resources", {}).get(group, {}).items():
                    for named in (f"{group}.{key}", *([key] if group == "requests" else [])):
                        uses[named] = uses.get(named, Decimal(0)) + quantity(value)
    if kind == kinds.CLAIM:
        uses["requests.storage"] = quantity(made["spec"]["resources"]["requests"]["storage"])
    return uses


def _unsaid(kind: Kind, made: Made, key: str) -> bool:
    """Return whether a Pod must say something for a quota to count it, and does not."""
    group, _, what = key.rpartition(".")
    if kind != kinds.POD or what not in {"cpu", "memory"}:
        return False
    return any(
        what not in item.get("resources", {}).get(group or "requests", {}) for item in _all_containers(made["spec"])
    )


def _all_containers(spec: Made) -> list[Made]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def _lasting_containers(spec: Made) -> list[Made]:
    """Return those that run at the same time, as long as no other of the first ones needs more than they together."""
    return [one for one in _all_containers(spec) if one in spec["containers"] or one.get("restartPolicy") == "Always"]


def _shown(amount: Decimal) -> str:
    whole = amount.to_integral_value()
    return str(int(whole)) if whole == amount else f"{int(amount * 1000)}m"
