"""MemoryEngine: sandboxes without Docker, each a daemon that is a plain process. IT CONTAINS NOTHING.

Every command runs as a program of this machine, with this process' user, files and network. It is for tests, examples
and development against a gateway without Docker; never run unreviewed code in it. The configuration selects it by name
only (`sandbox.engine: memory`), and the gateway then listens on loopback alone.

    engine = MemoryEngine()                      # everything in a temporary directory that close() removes
    engine = MemoryEngine(root=directory)        # workspaces stay there, for the next process

It keeps the Engine protocol except for isolation: tests/conformance runs on both engines. The differences:

    - image, runtime and limits are recorded and not enforced, and the posture has only Landlock: file rules hold;
    - file calls see /workspace and /tmp, which are directories of the sandbox, and nothing else. Commands see this
      machine's paths: they run in the workspace and should use relative names; $TMPDIR is the /tmp of file calls;
    - a sandbox that was stopped for being idle keeps its files and its id only;
    - sandboxes end with this process, however it ends (local_daemon.py): close() keeps none;
    - one process at a time uses a root, and locks it.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sandbox.engines.local.local_workspaces import LocalWorkspaces, remove_directory
from sandbox.engines.local.memory_creation import MemoryCreation
from sandbox.engines.local.memory_endings import MemoryEndings
from sandbox.engines.local.memory_files import MemoryFiles
from sandbox.engines.local.memory_sandboxes import MemorySandboxes
from sandbox.sandbox import LeftSandbox
from sandbox.transition import STOPPING, OnTransition, ignored


class MemoryEngine:
    """Satisfies sandbox.engine.Engine. `on_transition` receives each transition. `clock` is in seconds since 1970.

    A sandbox older than `lifetime_s` is replaced once it is unused; None sets no limit.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        lifetime_s: float | None = None,
        new_suffix: Callable[[], str] = lambda: secrets.token_hex(4),
        on_transition: OnTransition = ignored,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._temporary = root is None
        self._root = Path(tempfile.mkdtemp(prefix="airlock-memory-")) if root is None else root
        self._workspaces = workspaces = LocalWorkspaces(self._root)
        self._sandboxes = sandboxes = MemorySandboxes(lifetime_s, on_transition, clock)
        creation = MemoryCreation(sandboxes, workspaces, new_suffix)
        endings, files = MemoryEndings(sandboxes), MemoryFiles(sandboxes, workspaces)

        # The protocols' methods, each by the part that does it. Creator and Leasing:
        self.create, self.find = creation.create, creation.find
        self.stop_idle, self.remove, self.remove_idle = endings.stop_idle, endings.remove, endings.remove_idle
        self.trim_stopped, self.remove_workspaces = endings.trim_stopped, files.remove_workspaces
        # Register and Listing:
        self.has, self.stopped, self.stopped_count = sandboxes.has, sandboxes.stopped, sandboxes.stopped_count
        self.owners, self.listed = sandboxes.owners, sandboxes.listed
        self.usage, self.owned = sandboxes.usage, sandboxes.owned
        # Ending, Workspaces and Removal:
        self.stop, self.remove_of, self.end_calls = endings.stop, endings.remove_of, endings.end_calls
        self.save_workspace, self.replace_workspace = files.save_workspace, files.replace_workspace
        self.remove_workspace = files.remove_workspace
        self.remove_all_of, self.left_of = files.remove_all_of, files.left_of
        # The engine itself:
        self.id, self.prepare = workspaces.id, workspaces.prepare

    async def ping(self) -> None: ...

    async def reconcile(self) -> Sequence[LeftSandbox]:
        await self.prepare()
        return []  # no sandbox outlives its process

    async def close(self, *, keep_sandboxes: bool = False) -> None:  # noqa: ARG002 - they end with this process
        """End every sandbox, busy ones too; workspaces stay in a root that was given. Closing again is no error."""
        if self._workspaces.closing:
            return
        self._workspaces.closing = True
        await self._sandboxes.end_all(STOPPING)
        await self._workspaces.close()
        if self._temporary:
            await asyncio.to_thread(remove_directory, self._root)
