"""envd's service filesystem.Filesystem over the file calls of Airlock, without watching (watching.py)."""

import stat
from collections.abc import Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.client import FileEntry, FileKind
from gateway.e2b.envd import filesystem_pb2 as pb
from gateway.e2b.envd_call import USER, Context, EnvdCall
from gateway.e2b.paths import SandboxPath, path_of
from gateway.errors import AirlockError, Conflict, Exhausted, InvalidArgument, NotADirectory, NotFound

_ENTRIES_LIMIT, _DEPTH_LIMIT = 10_000, 64
_KINDS: Mapping[FileKind, tuple[pb.FileType, int]] = {
    "file": (pb.FILE_TYPE_FILE, stat.S_IFREG),
    "directory": (pb.FILE_TYPE_DIRECTORY, stat.S_IFDIR),
    "symlink": (pb.FILE_TYPE_SYMLINK, stat.S_IFLNK),
    "other": (pb.FILE_TYPE_UNSPECIFIED, stat.S_IFIFO),
}
_WRITABLE = ("/workspace", "/tmp")  # noqa: S108 - in the sandbox


class FilesystemRpc:
    """The methods."""

    async def stat(self, call: EnvdCall, request: pb.StatRequest, _context: Context) -> pb.StatResponse:
        path = path_of(request.path)
        return pb.StatResponse(entry=entry_of(path, await call.client.stat_file(call.thread, path.inside)))

    async def list_dir(self, call: EnvdCall, request: pb.ListDirRequest, _context: Context) -> pb.ListDirResponse:
        depth = request.depth or 1
        if depth > _DEPTH_LIMIT:
            raise InvalidArgument(f"depth: {_DEPTH_LIMIT} at most")
        entries: list[pb.EntryInfo] = []
        await self._list(call, path_of(request.path), depth, entries)
        return pb.ListDirResponse(entries=entries)

    async def _list(self, call: EnvdCall, path: SandboxPath, depth: int, entries: list[pb.EntryInfo]) -> None:
        async for found in call.client.list_files(call.thread, path.inside):
            if len(entries) >= _ENTRIES_LIMIT:
                raise Exhausted(f"the directory has more than {_ENTRIES_LIMIT:,} entries; list less depth, or parts")
            below = path.below(found.name)
            entries.append(entry_of(below, found))
            if found.kind == "directory" and depth > 1:
                await self._list(call, below, depth - 1, entries)

    async def make_dir(self, call: EnvdCall, request: pb.MakeDirRequest, _context: Context) -> pb.MakeDirResponse:
        path = path_of(request.path)
        try:
            found = await call.client.stat_file(call.thread, path.inside)
        except NotFound:
            await call.client.make_directory(call.thread, path.inside)
            return pb.MakeDirResponse(entry=entry_of(path, await call.client.stat_file(call.thread, path.inside)))
        if found.kind != "directory":
            raise NotADirectory(f"path already exists but it is not a directory: {path.shown}")
        raise Conflict(f"directory already exists: {path.shown}")

    async def move(self, call: EnvdCall, request: pb.MoveRequest, _context: Context) -> pb.MoveResponse:
        """Rename with `mv`, since no file call does: the policy judges it as a command."""
        source, target = path_of(request.source), path_of(request.destination)
        await call.client.stat_file(call.thread, source.inside)
        await call.client.make_directory(call.thread, target.parent)
        argv = ["mv", "-f", "-T", "--", source.inside, target.inside]
        moved = await call.client.run_program(argv, thread=call.thread, timeout_s=60)
        if moved.exit_code != 0:
            why = moved.stderr.strip()[:500] or moved.message or moved.outcome
            raise AirlockError(f"error renaming {source.shown}: {why}")
        return pb.MoveResponse(entry=entry_of(target, await call.client.stat_file(call.thread, target.inside)))

    async def remove(self, call: EnvdCall, request: pb.RemoveRequest, _context: Context) -> pb.RemoveResponse:
        path = path_of(request.path)
        await call.client.remove_file(call.thread, path.inside, recursive=True, missing_ok=True)
        return pb.RemoveResponse()


def entry_of(path: SandboxPath, found: FileEntry) -> pb.EntryInfo:
    """Return an entry as envd describes it. Its owner is known where the tool user alone can write."""
    kind, bits = _KINDS[found.kind]
    modified = Timestamp()
    modified.FromDatetime(found.modified_at)
    owned = path.inside.startswith(_WRITABLE)
    return pb.EntryInfo(
        name=path.name,
        type=kind,
        path=path.shown,
        size=found.size_bytes,
        mode=found.mode,
        permissions=stat.filemode(bits | found.mode),
        owner=USER if owned else "",
        group=USER if owned else "",
        modified_time=modified,
    )
