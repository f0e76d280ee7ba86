"""What is checked of an object besides its schema: names, labels, Pods, and what an update may change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.kinds import Kind
from tests.kubernetes.quantities import quantity
from tests.kubernetes.schemas import check
from tests.kubernetes.statuses import Cause, invalid
from tests.kubernetes.store import copied

Made = Mapping[str, Any]
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_KEY = re.compile(rf"({_SUBDOMAIN.pattern}/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_POD_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate(kind: Kind, made: Made, old: Made | None = None) -> None:
    """Raise 400 or 422 for an object that the real server would refuse."""
    name = made["metadata"].get("name", "")
    check(kind, made, name, old)
    causes = [*_metadata(kind, made)]
    if kind == kinds.POD:
        causes.extend(_pod(made))
    if kind == kinds.CLAIM and old is None:
        causes.extend(_claim(made))
    if old is not None:
        causes.extend(_changes(kind, made, old))
    if causes:
        raise invalid(kind, name, causes)


def _wrong(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {why}")


def _metadata(kind: Kind, made: Made) -> Iterator[Cause]:
    metadata = made["metadata"]
    name = metadata.get("name", "")
    shape, longest = (_LABEL, 63) if kind in {kinds.NAMESPACE, kinds.SERVICE} else (_SUBDOMAIN, 253)
    free = kind.group == "rbac.authorization.k8s.io"
    if not free and (not shape.fullmatch(name) or len(name) > longest):
        about = "label" if shape is _LABEL else "subdomain"
        yield _wrong("metadata.name", name, f"a lowercase RFC 1123 {about} must consist of lower case alphanumerics")
    for key, value in metadata.get("labels", {}).items():
        if not _KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield _wrong("metadata.labels", key, "name part must consist of alphanumeric characters, '-', '_' or '.'")
        if not _VALUE.fullmatch(value) or len(value) > 63:
            yield _wrong("metadata.labels", value, "a valid label must be an empty string or 63 characters at most")
    for key in metadata.get("annotations", {}):
        if not _KEY.fullmatch(key):
            yield _wrong("metadata.annotations", key, "name part must consist of alphanumeric characters")
    if sum(len(key) + len(value) for key, value in metadata.get("annotations", {}).items()) > 256 * 1024:
        yield Cause("metadata.annotations", "FieldValueTooLong", "Too long: may not be more than 262144 bytes")


def _pod(made: Made) -> Iterator[Cause]:
    spec = made.get("spec", {})
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    if not spec.get("containers"):
        yield Cause("spec.containers", "FieldValueRequired", "Required value")
    for index, volume in enumerate(spec.get("volumes", ())):
        sources = len(volume) - 1
        if sources != 1:
            why = (
                "Required value: must specify a volume type"
                if not sources
                else "Forbidden: may not specify more than 1 volume type"
            )
            yield Cause(f"spec.volumes[{index}]", "FieldValueRequired" if not sources else "FieldValueForbidden", why)
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group, ())):
            where = f"spec.{group}[{index}]"
            if container["name"] in seen:
                yield Cause(f"{where}.name", "FieldValueDuplicate", f'Duplicate value: "{container["name"]}"')
            seen.add(container["name"])
            yield from _container(where, container, volumes)


def _container(where: str, container: Made, volumes: set[str]) -> Iterator[Cause]:
    if not _LABEL.fullmatch(container["name"]) or len(container["name"]) > 63:
        yield _wrong(f"{where}.name", container["name"], "a lowercase RFC 1123 label must consist of lower case")
    if not container.get("image"):
        yield Cause(f"{where}.image", "FieldValueRequired", "Required value")
    paths: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts", ())):
        at = f"{where}.volumeMounts[{number}]"
        if mount["name"] not in volumes:
            yield Cause(f"{at}.name", "FieldValueNotFound", f'Not found: "{mount["name"]}"')
        if mount["mountPath"] in paths:
            yield _wrong(f"{at}.mountPath", mount["mountPath"], "must be unique")
        paths.add(mount["mountPath"])
    resources = container.get("resources", {})
    for group in ("limits", "requests"):
        for key, value in resources.get(group, {}).items():
            yield from _amount(f"{where}.resources.{group}[{key}]", value)
    for key, value in resources.get("requests", {}).items():
        limit = resources.get("limits", {}).get(key)
        if limit is not None and quantity(value) > quantity(limit):
            yield _wrong(f"{where}.resources.requests", value, f"must be less than or equal to {key} limit of {limit}")
    security = container.get("securityContext", {})
    if security.get("privileged") and security.get("allowPrivilegeEscalation") is False:
        why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        yield _wrong(f"{where}.securityContext", "", why)


def _amount(where: str, value: str) -> Iterator[Cause]:
    try:
        if quantity(value) < 0:
            yield _wrong(where, value, "must be greater than or equal to 0")
    except ValueError as error:
        yield _wrong(where, value, str(error))


def _claim(made: Made) -> Iterator[Cause]:
    spec = made.get("spec", {})
    if not spec.get("accessModes"):
        yield Cause("spec.accessModes", "FieldValueRequired", "Required value: at least 1 access mode is required")
    if "storage" not in spec.get("resources", {}).get("requests", {}):
        yield Cause("spec.resources[storage]", "FieldValueRequired", "Required value")


def _changes(kind: Kind, made: Made, old: Made) -> Iterator[Cause]:
    for field in ("uid", "creationTimestamp", "namespace", "deletionTimestamp"):
        if made["metadata"].get(field) != old["metadata"].get(field):
            yield _wrong(f"metadata.{field}", made["metadata"].get(field, ""), "field is immutable")
    if kind == kinds.POD and _fixed_of_pod(made) != _fixed_of_pod(old):
        yield Cause("spec", "FieldValueForbidden", f"Forbidden: {_POD_MAY_CHANGE}")
    if kind == kinds.CLAIM and _fixed_of_claim(made) != _fixed_of_claim(old):
        why = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        yield Cause("spec", "FieldValueForbidden", f"Forbidden: {why}")
    if kind in {kinds.SECRET, kinds.CONFIG_MAP} and old.get("immutable") and made.get("data") != old.get("data"):
        yield Cause("data", "FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set")
    if kind == kinds.SECRET and made.get("type") != old.get("type"):
        yield _wrong("type", made.get("type", ""), "field is immutable")
    if kind in {kinds.ROLE_BINDING, kinds.CLUSTER_ROLE_BINDING} and made["roleRef"] != old["roleRef"]:
        yield _wrong("roleRef", "", "cannot change roleRef")


def _fixed_of_pod(made: Made) -> Made:
    spec = copied(made["spec"])
    for group in ("containers", "initContainers"):
        for container in spec.get(group, ()):
            container.pop("image", None)
    for field in ("activeDeadlineSeconds", "tolerations"):
        spec.pop(field, None)
    return spec


def _fixed_of_claim(made: Made) -> Made:
    spec = copied(made["spec"])
    spec.get("resources", {}).pop("requests", None)
    for field in ("volumeAttributesClassName", "volumeName"):  # the binder sets the second, once
        spec.pop(field, None)
    return spec
