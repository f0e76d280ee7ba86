"""The streams of sandboxes that are open in this process: they end when their sandbox does."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

_STREAMS_OF_A_SANDBOX = 128


@dataclass
class OpenStreams:
    """An event for each open stream, by sandbox."""

    _of: dict[str, set[asyncio.Event]] = field(default_factory=lambda: defaultdict(set))

    @contextlib.contextmanager
    def opened(self, sandbox_id: str, over: asyncio.Event) -> Iterator[None]:
        """Set `over` when the sandbox ends while the block runs."""
        self._of[sandbox_id].add(over)
        try:
            yield
        finally:
            self._of[sandbox_id].discard(over)
            if not self._of[sandbox_id]:
                del self._of[sandbox_id]

    def full(self, sandbox_id: str) -> bool:
        """Return whether a sandbox has as many streams as it may have."""
        return sandbox_id in self._of and len(self._of[sandbox_id]) >= _STREAMS_OF_A_SANDBOX

    def open_sandboxes(self) -> tuple[str, ...]:
        return tuple(self._of)

    def end(self, sandbox_id: str) -> None:
        """End the streams of a sandbox."""
        for over in self._of.get(sandbox_id, ()):
            over.set()
