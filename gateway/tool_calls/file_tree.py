"""Listing, describing, removing and making paths of a workspace, for services. Nothing is redacted."""

from __future__ import annotations

from gateway.tool_calls.file_call import FileCall
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.errors import NotFound
from sandbox.filesystem import EntriesPage, Entry


class Listing(FileCall):
    """Lists a page of a directory, or with a `pattern` of what matches below it."""

    audit_kind = "file_list"

    def __init__(self, sandbox: ThreadSandbox, pattern: str, *, offset: int, limit: int) -> None:
        super().__init__(sandbox)
        self._pattern = pattern
        self._offset = offset
        self._limit = limit
        self.page = EntriesPage((), 0, more=False)

    async def _work(self, path: str) -> str:
        sandbox, offset, limit = self._sandbox, self._offset, self._limit
        if self._pattern:
            self.page = await sandbox.glob(path, self._pattern, offset=offset, limit=limit)
        else:
            self.page = await sandbox.ls(path, offset=offset, limit=limit)
        # Only the names can grow without bound.
        self.moved_bytes = sum(len(entry.name.encode(errors="surrogateescape")) for entry in self.page.entries)
        return f"{len(self.page.entries)} entries"


class Look(FileCall):
    """Describes one path."""

    audit_kind = "file_stat"

    def __init__(self, sandbox: ThreadSandbox) -> None:
        super().__init__(sandbox)
        self.entry: Entry | None = None

    async def _work(self, path: str) -> str:
        self.entry = await self._sandbox.stat(path)
        return self.entry.type


class Removal(FileCall):
    """Removes one path, and with `recursive` what is below it."""

    audit_kind = "file_remove"

    def __init__(self, sandbox: ThreadSandbox, *, recursive: bool, missing_ok: bool) -> None:
        super().__init__(sandbox)
        self._recursive = recursive
        self._missing_ok = missing_ok

    async def _work(self, path: str) -> str:
        try:
            await self._sandbox.remove(path, recursive=self._recursive)
        except NotFound:
            if not self._missing_ok:
                raise
            return "nothing was there"
        return "removed"


class DirectoryMaking(FileCall):
    """Makes a directory and its parents."""

    audit_kind = "directory_make"

    async def _work(self, path: str) -> str:
        await self._sandbox.mkdir(path)
        return "made"
