"""What controllers share: a cache that may lag behind the API, and a queue of what is to be reconciled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.kubernetes.deletion import now
from tests.kubernetes.kinds import BY_NAME, Kind
from tests.kubernetes.patches import MERGE_PATCH
from tests.kubernetes.requests import Requests, Target
from tests.kubernetes.statuses import ApiError
from tests.kubernetes.store import Change, Made, Store

Key = tuple[Kind, str, str]
_RETRY_S = 0.02


class Informer:
    """A controller's cache of the API. With a lag it acts on what was, as every controller may."""

    def __init__(self, store: Store, kinds: Sequence[Kind], lag_s: float) -> None:
        self._store = store
        self._kinds = kinds
        self._lag_s = lag_s
        self._cached: dict[Key, Made] = {}

    async def run(self, changed: asyncio.Queue[Change]) -> None:
        """Keep the cache, and hand on each change once it is in it."""
        with self._store.changes() as queue:
            for kind in self._kinds:
                for made in self._store.all(kind):
                    self._apply(Change(self._store.version, kind, None, made), changed)
            while True:
                change = await queue.get()
                if self._lag_s:
                    await asyncio.sleep(max(0.0, change.at_s + self._lag_s - time.monotonic()))
                self._apply(change, changed)

    def find(self, kind: Kind, namespace: str, name: str) -> Made | None:
        if not self._lag_s:
            return self._store.find(kind, namespace, name)
        return self._cached.get((kind, namespace, name))

    def all(self, kind: Kind, namespace: str) -> list[Made]:
        if not self._lag_s:
            return self._store.all(kind, namespace)
        return [
            made
            for (of, where, _), made in sorted(self._cached.items(), key=_by_name)
            if (of, where) == (kind, namespace)
        ]

    def _apply(self, change: Change, changed: asyncio.Queue[Change]) -> None:
        if change.kind not in self._kinds:
            return
        metadata = change.made["metadata"]
        key = (change.kind, metadata.get("namespace", ""), metadata["name"])
        if change.new is None:
            self._cached.pop(key, None)
        else:
            self._cached[key] = change.new
        changed.put_nowait(change)


def _by_name(item: tuple[Key, Made]) -> str:
    return item[0][2]


class Controller:
    """Reconciles objects one after another, each again after a change that concerns it, and after an error."""

    watched: Sequence[Kind]
    reconciled: Kind

    def __init__(self, requests: Requests, lag_s: float = 0) -> None:
        self.requests = requests
        self.cache = Informer(requests.store, self.watched, lag_s)

    def reconcile(self, made: Made) -> float | None:
        """Bring an object closer to what it asks for; return after how many seconds to look again, if at all."""
        raise NotImplementedError

    def keys_of(self, change: Change) -> Iterator[Key]:
        """Yield what a change concerns: the object, or the one that controls it."""
        metadata = change.made["metadata"]
        if change.kind == self.reconciled:
            yield (change.kind, metadata["namespace"], metadata["name"])
        owners = [change.made, *([change.old] if change.old else [])]
        for made in owners:
            owner = controller_of(made)
            if owner and BY_NAME.get((owner["apiVersion"], owner["kind"])) == self.reconciled:
                yield (self.reconciled, metadata["namespace"], owner["name"])

    async def run(self) -> None:
        """Reconcile for ever."""
        changed: asyncio.Queue[Change] = asyncio.Queue()
        due: dict[Key, float] = {}
        loop = asyncio.get_running_loop()
        caching = asyncio.create_task(self.cache.run(changed))
        try:
            while True:
                await self._gather(changed, due)
                for key in [key for key, at in due.items() if at <= loop.time()]:
                    del due[key]
                    made = self.cache.find(*key)
                    if made is None:
                        continue
                    try:
                        again_s = self.reconcile(made)
                    except ApiError:
                        again_s = _RETRY_S
                    if again_s is not None:
                        due[key] = loop.time() + again_s
                    await asyncio.sleep(0)
        finally:
            caching.cancel()

    async def _gather(self, changed: asyncio.Queue[Change], due: dict[Key, float]) -> None:
        """Wait until something is due, noting what changes meanwhile."""
        loop = asyncio.get_running_loop()
        while True:
            while not changed.empty():
                for key in self.keys_of(changed.get_nowait()):
                    due[key] = loop.time()
            soonest = min(due.values(), default=loop.time() + 3600)
            if soonest <= loop.time():
                return
            try:
                change = await asyncio.wait_for(changed.get(), soonest - loop.time())
            except TimeoutError:
                return
            for key in self.keys_of(change):
                due[key] = loop.time()

    def create(self, kind: Kind, made: Made) -> Made:
        return self.requests.create(Target(kind, made["metadata"]["namespace"]), made)

    def patch(self, kind: Kind, made: Made, change: Mapping[str, Any], subresource: str = "") -> Made:
        """Apply a merge patch; one with a resourceVersion is refused if the object has changed since."""
        metadata = made["metadata"]
        target = Target(kind, metadata["namespace"], metadata["name"], subresource)
        return self.requests.patch(target, change, MERGE_PATCH)

    def delete(self, kind: Kind, made: Made) -> None:
        metadata = made["metadata"]
        target = Target(kind, metadata["namespace"], metadata["name"])
        try:
            self.requests.delete(target, {"preconditions": {"uid": metadata["uid"]}})
        except ApiError as error:
            if error.code != 404:
                raise

    def write_status(self, kind: Kind, made: Made, status: Made) -> None:
        """Write a status if it differs from the cached one, without its conditions' times."""
        if _timeless(made.get("status", {})) != _timeless(status):
            dropped = {key: None for key in made.get("status", {}) if key not in status}
            self.patch(kind, made, {"status": {**dropped, **status}}, "status")


def _timeless(status: Made) -> Made:
    conditions = [{**item, "lastTransitionTime": ""} for item in status.get("conditions", ())]
    return {**status, "conditions": sorted(conditions, key=lambda item: str(item["type"]))}


def controller_of(made: Made) -> Made | None:
    owners = made["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), None)


def is_controlled_by(made: Made, owner: Made) -> bool:
    found = controller_of(made)
    return found is not None and found["uid"] == owner["metadata"]["uid"]


def reference(kind: Kind, owner: Made) -> Made:
    """Return the reference of an object that a controller has made."""
    metadata = owner["metadata"]
    about = {"apiVersion": kind.api_version, "kind": kind.kind, "name": metadata["name"], "uid": metadata["uid"]}
    return {**about, "controller": True, "blockOwnerDeletion": True}


def condition(made: Made, kind: str, value: str, reason: str, message: str) -> Made:
    """Return a condition; its time is that of the object's own if its status is the same."""
    old = next((item for item in made.get("status", {}).get("conditions", ()) if item["type"] == kind), None)
    since = old["lastTransitionTime"] if old and old["status"] == value else now()
    about = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since}
    return {**about, "observedGeneration": made["metadata"].get("generation", 1)}


def condition_of(made: Made, kind: str) -> Made:
    return next((item for item in made.get("status", {}).get("conditions", ()) if item["type"] == kind), {})


def is_ready(made: Made) -> bool:
    return bool(condition_of(made, "Ready").get("status") == "True")


def name_hash(name: str) -> str:
    """Return the 32-bit FNV-1a hash by which labels name an object."""
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return f"{value:08x}"
