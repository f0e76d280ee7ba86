"""Files of a thread's sandbox in the Python client."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, get_args

from airlock.errors import InvalidArgument, Unavailable
from airlock.input import Input, RequestStream, Source
from airlock.messages import Fields, message, record
from airlock.v1 import workspace_service_pb2 as pb
from airlock.wire import Wire

FileKind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True)
class FileEntry:
    """A path of a sandbox: `name` is its last part, or with a pattern the path below the listed directory.

    `mode` has the permission bits. The `etag` changes with each write.
    """

    name: str
    kind: FileKind
    size_bytes: int
    modified_at: datetime
    mode: int
    etag: str


class FileCalls(Wire):
    """The calls of WorkspaceService; paths are absolute, or relative to /workspace.

    All raise PermissionDenied if the policy (`rule` of its details) or the file's mode denies it, InvalidPath,
    Unavailable.
    """

    async def write_file(self, thread: str, path: str, data: Input) -> int:
        """Replace a file atomically and return its size in bytes; a source that raises leaves the old file.

        `data` is bytes, a Path or open binary file of this machine, or an iterator of bytes, also an asynchronous one.
        If the connection breaks it is sent again, except for an iterator or a file that cannot seek. Raises
        IsADirectory, NoSpace, and OSError for a local file that cannot be read.
        """
        source = Source(data)
        return await self._again(lambda _: self._written(thread, path, source), safe=source.repeatable)

    async def _written(self, thread: str, path: str, source: Source) -> int:
        opening = message(pb.WriteFileRequest, thread=thread, path=path)

        async def requests() -> AsyncGenerator[pb.WriteFileRequest]:
            async with source.reading() as pieces:
                yield opening
                async for piece in pieces:
                    yield pb.WriteFileRequest(data=piece)
                yield pb.WriteFileRequest(end=True)

        with self._translated():
            call = self._open(self._method(pb.WriteFileRequest))
            async with RequestStream(call, requests()):
                return int((await call).size_bytes)

    async def read_file(self, thread: str, path: str, *, offset: int = 0, limit_bytes: int | None = None) -> bytes:
        """Return at most `limit_bytes` of a file from `offset` on; past its end there are none.

        Resumes as stream_file does. Raises NotFound, IsADirectory.
        """
        read = self.stream_file(thread, path, offset=offset, limit_bytes=limit_bytes)
        return b"".join([chunk async for chunk in read])

    async def stream_file(
        self, thread: str, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield a file's bytes in pieces; a slow reader slows the sandbox and costs the gateway nothing.

        Resumes after a broken connection; Unavailable if the file was written meanwhile. Raises as read_file.
        """
        if limit_bytes is not None and limit_bytes < 1:
            raise InvalidArgument("limit_bytes: 1 or more; leave it out to read to the end")
        asked: Fields = {"thread": thread, "path": path, "offset": offset, "limit_bytes": limit_bytes or 0}
        etag = ""
        async for piece in self._resumed(pb.ReadFileRequest, asked, patient=False):
            if piece.HasField("file"):
                if etag and piece.file.etag != etag:
                    raise Unavailable(
                        f"the connection broke after byte {asked['offset']:,} of {path}, and the file was written "
                        "meanwhile: read it again from its beginning"
                    )
                etag = piece.file.etag
            data = piece.data if limit_bytes is None else piece.data[: offset + limit_bytes - asked["offset"]]
            asked["offset"] += len(data)
            if limit_bytes is not None:
                # If all bytes came but not the end, one more is asked for: 0 would mean to the end of the file.
                asked["limit_bytes"] = max(offset + limit_bytes - asked["offset"], 1)
            if data:
                yield data

    def list_files(self, thread: str, path: str = "", *, pattern: str = "") -> AsyncIterator[FileEntry]:
        """Yield the entries of a directory, by default /workspace, by name.

        With a `pattern` relative to `path`, those that match: *.py in the directory itself, **/*.py at any depth. An
        entry may come twice or be missed if the directory changes meanwhile. Raises NotFound, NotADirectory.
        """
        wanted: Fields = {"thread": thread, "path": path, "pattern": pattern}
        return self._listed(_entry, pb.ListFilesRequest, "files", page_limit=1000, **wanted)

    async def stat_file(self, thread: str, path: str) -> FileEntry:
        """Describe a path; a symbolic link at its end is not followed. Raises NotFound."""
        return _entry((await self._ask(pb.StatFileRequest, thread=thread, path=path)).file)

    async def remove_file(self, thread: str, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link or a directory, with `recursive` also its contents.

        Repeated after a broken connection only with `missing_ok`: otherwise the cause of a NotFound would be unclear.
        Raises NotFound, and Conflict for a directory that is not empty.
        """
        options: Fields = {"recursive": recursive, "missing_ok": missing_ok}
        await self._ask(pb.RemoveFileRequest, safe=missing_ok, thread=thread, path=path, **options)

    async def make_directory(self, thread: str, path: str) -> None:
        """Make a directory and its parents; an existing one is no error. Raises NotADirectory, NoSpace."""
        await self._ask(pb.MakeDirectoryRequest, thread=thread, path=path)


def _entry(one: pb.FileEntry) -> FileEntry:
    entry = record(FileEntry, one)
    return entry if entry.kind in get_args(FileKind) else replace(entry, kind="other")
