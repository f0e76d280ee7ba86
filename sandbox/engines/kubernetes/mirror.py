"""Mirror: a copy of the objects with some labels, kept by a watch; it answers what must not wait for the API.

It may be a moment old. What this process writes it also puts here, so it never looks older than its own doings; a
watch's event that is older than what is here is passed over. Decisions are made by the API, with versions.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sandbox.engines.kubernetes.kubernetes_requests import Expired, KubernetesRequests
from sandbox.engines.kubernetes.resources import Made, Resource
from sandbox.errors import SandboxError

log = logging.getLogger(__name__)

_Kept = TypeVar("_Kept")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Mirror(Generic[_Kept]):
    """Keeps what `parse` makes of each object, by name; None is not kept. `changed` is called for each change.

    What is not `mine` is passed over: an object that another account made and labelled like this instance's.
    """

    def __init__(
        self,
        requests: KubernetesRequests,
        where: tuple[Resource, str, str],
        parse: Callable[[Made], _Kept | None],
        changed: Callable[[str, _Kept | None], None] = lambda _name, _kept: None,
        mine: Callable[[Made], bool] = lambda _made: True,
    ) -> None:
        self.items: dict[str, _Kept] = {}
        self._requests = requests
        self._where = where
        self._parse = parse
        self._changed = changed
        self._mine = mine
        self._versions: dict[str, int] = {}  # of what is kept, and of what was forgotten since the last list
        self._version = ""
        self._watching: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """List the objects, and keep the copy from then on; raises SandboxError if they cannot be listed."""
        async with self._starting:
            if self._watching is None:
                await self.refresh()
                self._watching = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None

    def put(self, made: Made) -> None:
        """Keep what the API has just said of an object."""
        name, version = made["metadata"]["name"], int(made["metadata"]["resourceVersion"])
        kept = self._parse(made)
        if version < self._versions.get(name, 0) or (kept is None and name not in self._versions):
            return
        self._versions[name] = version
        self._note(name, kept)

    def forget(self, name: str) -> None:
        """Drop an object that this process has deleted; what a watch still says of it is older."""
        if name in self._versions:
            self._versions[name] += 1
            self._note(name, None)

    def version(self, name: str) -> str:
        """Return the newest version of an object that was seen; "" of one that was not."""
        return str(self._versions.get(name, ""))

    async def news(self) -> None:
        """Wait for the next change."""
        await self._news.wait()

    async def refresh(self) -> None:
        """Read all objects anew, where a copy that may be old is not enough."""
        listed, version = await self._requests.list(*self._where)
        found = [made for made in listed if self._mine(made)]
        names = {made["metadata"]["name"] for made in found}
        for made in found:
            self.put(made)
        for name in [*self._versions]:
            if name not in names and self._versions[name] <= int(version):
                del self._versions[name]
                self._note(name, None)
        self._version = version

    def _note(self, name: str, kept: _Kept | None) -> None:
        if self.items.get(name) == kept:
            return
        if kept is None:
            del self.items[name]
        else:
            self.items[name] = kept
        self._changed(name, kept)
        self._news.set()
        self._news = asyncio.Event()

    async def _follow(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async for kind, made in self._requests.watch(*self._where, self._version):
                    self._version = str(made["metadata"]["resourceVersion"])
                    if kind in ("ADDED", "MODIFIED") and self._mine(made):
                        self.put(made)
                    elif kind == "DELETED" and self._mine(made):
                        self._deleted(made)
                    pause_s = _FIRST_PAUSE_S
            except Expired:
                log.info("the watch of %s starts anew: its version has expired", self._where[0].plural)
                pause_s = await self._again(self.refresh(), pause_s)
            except SandboxError as error:
                log.warning("%s; it goes on in %.1f s", error, pause_s)
                pause_s = await self._again(asyncio.sleep(pause_s), pause_s)
            except Exception:
                log.exception("the watch of %s starts anew", self._where[0].plural)
                pause_s = await self._again(self.refresh(), pause_s)

    async def _again(self, work: Coroutine[Any, Any, None], pause_s: float) -> float:
        try:
            await work
        except SandboxError as error:
            log.warning("%s; it is tried again in %.1f s", error, pause_s)
            await asyncio.sleep(pause_s)
        return min(2 * pause_s, _LONGEST_PAUSE_S)

    def _deleted(self, made: Made) -> None:
        """Drop what was deleted, or has lost the labels; it may be back since, by this process's own doing."""
        name, version = made["metadata"]["name"], int(made["metadata"]["resourceVersion"])
        if name not in self.items or version >= self._versions.get(name, 0):
            self._versions.pop(name, None)
            self._note(name, None)
