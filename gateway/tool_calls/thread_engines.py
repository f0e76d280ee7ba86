"""Binds a thread's workspace to the engine of its first sandbox, for good.

A gateway on another engine would find no files and make a second, empty workspace. It refuses the thread instead.
"""

from gateway.errors import OtherEngine
from gateway.storage.engine_store import EngineStore
from gateway.storage.entities import Thread
from sandbox.engines.engine import Identity
from sandbox.errors import EngineUnavailable

# Threads known to be on this engine. Past the limit they are looked up again.
_KNOWN_LIMIT = 100_000


class ThreadEngines:
    """The threads of this process' engine."""

    def __init__(self, store: EngineStore, engine: Identity) -> None:
        self._store = store
        self._engine = engine
        self._known: set[str] = set()

    async def refuse_other(self, thread: Thread) -> None:
        """Raise OtherEngine for a thread whose workspace is on another engine; one without a workspace passes."""
        if thread.id in self._known:
            return
        engine = await self._store.engine_of(thread.id)
        if engine is not None:
            try:
                self._check(thread, engine, await self._engine.id())
            except EngineUnavailable:
                return  # calls in it fail anyway, with the reason

    async def claim(self, thread: Thread) -> None:
        """Bind a thread's workspace to this engine; OtherEngine if it is on another."""
        if thread.id in self._known:
            return
        own = await self._engine.id()
        self._check(thread, await self._store.claim(thread.id, own), own)

    def _check(self, thread: Thread, engine: str, own: str) -> None:
        if engine != own:
            raise OtherEngine(
                f"the files of thread {thread.name!r} are on engine {engine}, but this gateway uses {own}: use a "
                "gateway on that engine, or another thread",
                engine=engine,
            )
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        self._known.add(thread.id)
