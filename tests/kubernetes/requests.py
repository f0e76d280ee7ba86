"""The verbs of the Kubernetes API over the store: each checks, admits and writes as the real server does."""

from __future__ import annotations

import base64
import secrets
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.admission import admit
from tests.kubernetes.defaults import fill_in
from tests.kubernetes.deletion import delete, now, remove_if_final
from tests.kubernetes.kinds import Kind
from tests.kubernetes.patches import patched
from tests.kubernetes.schemas import without_nulls
from tests.kubernetes.selectors import matcher
from tests.kubernetes.statuses import ApiError, Cause, already_exists, bad_request, conflict, gone, invalid, not_found
from tests.kubernetes.store import Change, Made, Store, copied
from tests.kubernetes.validation import validate

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Target:
    """What a request is about."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True)
class Selection:
    """Which objects a list or a watch is about."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    after: str = ""
    version: str = ""


@dataclass
class _Page:
    """The rest of a list, as it was when its first page was read."""

    items: list[Made]
    version: int


@dataclass
class Requests:
    """The verbs, without authentication and transport."""

    store: Store
    _pages: dict[str, _Page] = field(default_factory=dict)

    def get(self, target: Target) -> Made:
        made = self.store.find(target.kind, target.namespace, target.name)
        if made is None:
            raise not_found(target.kind, target.name)
        return made

    def create(self, target: Target, body: Any, *, dry_run: bool = False) -> Made:
        made = self._read(target, body)
        metadata = made["metadata"]
        if prefix := metadata.get("generateName"):
            suffix = "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
            metadata.setdefault("name", prefix[:58] + suffix)
        if not metadata.get("name"):
            raise bad_request("name or generateName is required")
        for given in ("resourceVersion", "uid", "deletionTimestamp", "generation", "selfLink"):
            if metadata.pop(given, None) and given == "resourceVersion":
                raise bad_request("resourceVersion should not be set on objects to be created")
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        if target.kind.status:
            made.pop("status", None)
        made = fill_in(target.kind, _folded(target.kind, made), self.store)
        validate(target.kind, made)
        admit(target.kind, made, self.store)
        if self.store.find(target.kind, target.namespace, metadata["name"]) is not None:
            raise already_exists(target.kind, metadata["name"])
        return made if dry_run else self.store.put(target.kind, made)

    def update(self, target: Target, body: Any) -> Made:
        old = self.get(target)
        return self._replace(target, old, self._read(target, body))

    def patch(self, target: Target, body: Any, content_type: str) -> Made:
        old = self.get(target)
        new = patched(target.kind, old, body, content_type)
        if isinstance(body, dict) and "resourceVersion" not in body.get("metadata", {}):
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return self._replace(target, old, self._read(target, new))

    def delete(self, target: Target, options: Mapping[str, Any]) -> tuple[Made, bool]:
        """Return the object as it is now, and whether it still ends."""
        made = self.get(target)
        ending = delete(self.store, target.kind, made, options)
        return (made, False) if ending is None else (ending, True)

    def delete_selected(self, target: Target, selection: Selection, options: Mapping[str, Any]) -> Made:
        found = self._selected(target, selection)
        for made in found:
            delete(self.store, target.kind, made, options)
        return self._listed(target.kind, found, self.store.version)

    def list(self, target: Target, selection: Selection) -> Made:
        if selection.after:
            page = self._pages.pop(selection.after, None)
            if page is None or page.version < self.store.compacted:
                raise gone("The provided continue parameter is too old to display a consistent list result.")
        else:
            if selection.version and int(selection.version) > self.store.version:
                wanted = f"Too large resource version: {selection.version}, current: {self.store.version}"
                raise ApiError(504, "Timeout", f"Timeout: {wanted}", retry_after_s=1)
            page = _Page(self._selected(target, selection), self.store.version)
        if not selection.limit or len(page.items) <= selection.limit:
            return self._listed(target.kind, page.items, page.version)
        token = base64.urlsafe_b64encode(secrets.token_bytes(12)).decode()
        self._pages[token] = _Page(page.items[selection.limit :], page.version)
        left = {"continue": token, "remainingItemCount": len(page.items) - selection.limit}
        return self._listed(target.kind, page.items[: selection.limit], page.version, left)

    def events(self, target: Target, selection: Selection) -> list[Made]:
        """Return the watch events that have already happened since a version, all objects if it names none."""
        if selection.version in {"", "0"}:
            return [{"type": "ADDED", "object": made} for made in self._selected(target, selection)]
        changes = self.store.since(int(selection.version))
        return [event for change in changes for event in self.events_of(target, selection, change)]

    def events_of(self, target: Target, selection: Selection, change: Change) -> Iterator[Made]:
        """Yield what a watch shows of a change: one that leaves the selection is deleted to it."""
        if change.kind != target.kind:
            return
        wanted = matcher(target.kind, selection.labels, selection.fields)
        if target.namespace and change.made["metadata"].get("namespace") != target.namespace:
            return
        was = change.old is not None and wanted(change.old)
        is_now = change.new is not None and wanted(change.new)
        if was or is_now:
            what = "DELETED" if not is_now else "MODIFIED" if was else "ADDED"
            yield {"type": what, "object": change.made}

    def bind(self, target: Target, node: str) -> None:
        """Place a Pod on a node, as the scheduler asks."""
        pod = copied(self.get(target))
        pod["spec"]["nodeName"] = node
        self.store.put(target.kind, pod)

    def _selected(self, target: Target, selection: Selection) -> list[Made]:
        wanted = matcher(target.kind, selection.labels, selection.fields)
        return [made for made in self.store.all(target.kind, target.namespace) if wanted(made)]

    def _listed(self, kind: Kind, items: list[Made], version: int, more: Mapping[str, Any] | None = None) -> Made:
        metadata = {"resourceVersion": str(version), **(more or {})}
        if not kind.custom:  # the real server leaves these out of a built-in kind's list
            items = [{key: value for key, value in item.items() if key not in {"apiVersion", "kind"}} for item in items]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}

    def _read(self, target: Target, body: Any) -> Made:
        """Return a request's object, whose kind, namespace and name agree with the path."""
        kind = target.kind
        if not isinstance(body, dict):
            raise bad_request(f"couldn't get version/kind; json parse error: cannot unmarshal into a {kind.kind}")
        made = without_nulls(body)
        given = (made.get("apiVersion", kind.api_version), made.get("kind", kind.kind))
        if given != (kind.api_version, kind.kind):
            raise bad_request(
                f"the API version in the data ({given[0]}, {given[1]}) does not match the expected API version "
                f"({kind.api_version}, {kind.kind})"
            )
        made = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, **made}
        metadata = made["metadata"]
        if not isinstance(metadata, dict):
            raise bad_request("metadata must be an object")
        if kind.namespaced and metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if target.name and metadata.setdefault("name", target.name) != target.name:
            why = f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
            raise bad_request(why)
        return made

    def _replace(self, target: Target, old: Made, new: Made) -> Made:
        kind, name = target.kind, target.name
        given, mine = new["metadata"], old["metadata"]
        if given.get("resourceVersion") not in {None, "", mine["resourceVersion"]}:
            raise conflict(kind, name)
        if given.get("uid") not in {None, mine["uid"]}:
            raise conflict(kind, name, f"Precondition failed: UID in precondition: {given['uid']}, "
                           f"UID in object meta: {mine['uid']}")  # fmt: skip
        for kept in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            if kept in mine:
                given[kept] = mine[kept]
        if target.subresource == "status":
            new = {**copied(old), **({"status": new["status"]} if "status" in new else {})}
        elif kind.status:
            new = {**new, **({"status": old["status"]} if "status" in old else {})}
            if "status" not in old:
                new.pop("status", None)
        if "deletionTimestamp" in mine and set(given.get("finalizers", ())) - set(mine.get("finalizers", ())):
            why = "Forbidden: no new finalizers can be added if the object is being deleted"
            raise invalid(kind, name, [Cause("metadata.finalizers", "FieldValueForbidden", why)])
        new = _folded(kind, new)
        new["metadata"]["resourceVersion"] = mine["resourceVersion"]
        validate(kind, new, old)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = mine.get("generation", 1) + 1
        if not new["metadata"].get("finalizers", True):
            del new["metadata"]["finalizers"]
        if kind != kinds.POD and not new["metadata"].get("finalizers"):
            new["metadata"].pop("deletionGracePeriodSeconds", None)
        stored = self.store.put(kind, new)
        remove_if_final(self.store, kind, stored)
        return stored


def _folded(kind: Kind, made: Made) -> Made:
    """Fold a Secret's stringData into its data, as it is write-only."""
    if kind == kinds.SECRET and "stringData" in made:
        texts = made.pop("stringData")
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        made["data"] = {**made.get("data", {}), **encoded}
    return made
