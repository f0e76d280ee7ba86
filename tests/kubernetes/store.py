"""The objects of a cluster, with one counter for all resource versions and a history that can be compacted.

Stored objects are never changed in place: a writer stores a new one. All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.kinds import Kind
from tests.kubernetes.statuses import gone

Made = dict[str, Any]
_HISTORY = 10_000


@dataclass(frozen=True)
class Change:
    """One write: what an object was before it, and what it is since."""

    version: int
    kind: Kind
    old: Made | None
    new: Made | None
    """None once it is removed."""
    at_s: float = field(default_factory=time.monotonic)

    @property
    def made(self) -> Made:
        """The object, or what it was last, with the version of its removal."""
        if self.new is not None:
            return self.new
        last = copied(self.old or {})
        last["metadata"]["resourceVersion"] = str(self.version)
        return last


def copied(made: Mapping[str, Any]) -> Made:
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


class Store:
    """All objects by kind, namespace and name; the namespace of one that has none is ""."""

    def __init__(self) -> None:
        self.version = 1000
        self.compacted = 1000
        self._objects: dict[Kind, dict[tuple[str, str], Made]] = {}
        self._history: deque[Change] = deque(maxlen=_HISTORY)
        self._watchers: set[asyncio.Queue[Change]] = set()

    def find(self, kind: Kind, namespace: str, name: str) -> Made | None:
        """Return an object that the caller must not change."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: Kind, namespace: str = "") -> list[Made]:
        """Return the objects of a kind, of all namespaces if none is named, by namespace and name."""
        held = self._objects.get(kind, {})
        return [held[key] for key in sorted(held) if not namespace or key[0] == namespace]

    def everything(self) -> Iterator[tuple[Kind, Made]]:
        for kind, held in self._objects.items():
            for made in list(held.values()):
                yield kind, made

    def put(self, kind: Kind, made: Mapping[str, Any]) -> Made:
        """Store an object under a new version and return it; what changes nothing is not stored."""
        stored = copied(made)
        key = (stored["metadata"].get("namespace", ""), stored["metadata"]["name"])
        old = self.find(kind, *key)
        if old is not None:
            stored["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if stored == old:
                return old
        self.version += 1
        stored["metadata"]["resourceVersion"] = str(self.version)
        self._objects.setdefault(kind, {})[key] = stored
        self._note(Change(self.version, kind, old, stored))
        return stored

    def remove(self, kind: Kind, namespace: str, name: str) -> Made:
        """Remove an object and return it as a watch shows it."""
        old = self._objects[kind].pop((namespace, name))
        self.version += 1
        change = Change(self.version, kind, old, None)
        self._note(change)
        return change.made

    def compact(self, keep: int = 0) -> None:
        """Forget the history but for the last changes: who watches or lists from before them is told 410 Gone."""
        while len(self._history) > keep:
            self.compacted = self._history.popleft().version

    def since(self, version: int) -> list[Change]:
        """Return the changes after a version."""
        oldest = self._history[0].version - 1 if len(self._history) == _HISTORY else self.compacted
        if version < max(oldest, self.compacted):
            raise gone(f"too old resource version: {version} ({self.version})")
        return [change for change in self._history if change.version > version]

    @contextlib.contextmanager
    def changes(self) -> Iterator[asyncio.Queue[Change]]:
        """Give every change from now on, in its order."""
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    async def follow(self, *kinds: Kind) -> AsyncIterator[tuple[Kind, Made]]:
        """Yield every object of some kinds, then those that change, each as it is by then or was last."""
        with self.changes() as queue:
            for kind in kinds:
                for made in self.all(kind):
                    yield kind, made
            while True:
                change = await queue.get()
                if change.kind in kinds:
                    yield change.kind, change.made

    def _note(self, change: Change) -> None:
        self._history.append(change)
        # A copy: to put something may collect garbage, and so end a watch that was left in the midst.
        for queue in tuple(self._watchers):
            queue.put_nowait(change)
