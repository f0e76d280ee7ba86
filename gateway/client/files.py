"""Files in the Python client: in and out of a thread's sandbox, and what is there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from gateway.client.input import Input, Source
from gateway.client.messages import enum_name, message, record
from gateway.client.request_stream import RequestStream
from gateway.client.wire import Wire, pause
from gateway.errors import InvalidArgument, Overloaded, Unavailable
from gateway.v1 import workspace_service_pb2 as pb
from gateway.v1 import workspace_service_pb2_grpc as grpc_pb

FileKind = Literal["file", "directory", "symlink", "other"]
_PAGE_LIMIT = 1000


@dataclass(frozen=True)
class FileEntry:
    """A path of a sandbox: `name` is its last one, or with a pattern the path below the directory that was listed.

    `mode` are permission bits. The `etag` is another as soon as the file was written again.
    """

    name: str
    kind: FileKind
    size_bytes: int
    modified_at: datetime
    mode: int
    etag: str


class FileCalls(Wire):
    """The calls of WorkspaceService; paths are absolute, or relative to /workspace.

    All raise PermissionDenied where the policy (`rule` of its details) or the file's mode says no, InvalidPath,
    Unavailable.
    """

    @property
    def _workspaces(self) -> Any:
        return self._stub(grpc_pb.WorkspaceServiceStub)

    async def write_file(self, thread: str, path: str, data: Input) -> int:
        """Replace a file atomically and return its size in bytes; a source that raises leaves the old file.

        `data` is bytes, a Path or an open binary file of this machine, or an asynchronous iterator of bytes. Where the
        connection breaks it is sent again, which leaves the same file; an iterator, or a file that cannot seek, cannot
        be read again. Raises IsADirectory, NoSpace, and OSError for a local file that cannot be read.
        """
        source = Source(data)
        attempts = self._attempts()
        while True:
            try:
                return await self._written(thread, path, source)
            except (Unavailable, Overloaded) as error:
                await pause(attempts.pause_s(error) if source.repeatable else None, None, error)

    async def _written(self, thread: str, path: str, source: Source) -> int:
        opening = message(pb.WriteFileRequest, thread=thread, path=path)

        async def requests() -> AsyncGenerator[pb.WriteFileRequest]:
            async with source.reading() as pieces:
                yield opening
                async for piece in pieces:
                    yield pb.WriteFileRequest(data=piece)
                yield pb.WriteFileRequest(end=True)

        with self._translated():
            call = self._open(self._workspaces.WriteFile)
            async with RequestStream(call, requests()):
                return int((await call).size_bytes)

    async def read_file(self, thread: str, path: str, *, offset: int = 0, limit_bytes: int | None = None) -> bytes:
        """Return a file's bytes: from `offset` on, `limit_bytes` at most. Past its end there are none.

        Goes on where a connection broke, as stream_file. Raises NotFound, IsADirectory.
        """
        read = self.stream_file(thread, path, offset=offset, limit_bytes=limit_bytes)
        return b"".join([chunk async for chunk in read])

    async def stream_file(
        self, thread: str, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield a file's bytes in pieces; a slow reader slows the sandbox and costs the gateway nothing.

        A connection that breaks is made again, and the file read on where it was; Unavailable where it was written
        meanwhile. Raises as read_file.
        """
        if limit_bytes is not None and limit_bytes < 1:
            raise InvalidArgument("limit_bytes: 1 or more; leave it out to read to the end")
        at, etag = offset, ""

        def request_now() -> pb.ReadFileRequest:
            # Where all came but the end, one byte more is asked for: 0 would mean to the end of the file.
            left = 0 if limit_bytes is None else max(offset + limit_bytes - at, 1)
            return message(pb.ReadFileRequest, thread=thread, path=path, offset=at, limit_bytes=left)

        async for piece in self._resumed(self._workspaces.ReadFile, request_now, patient=False):
            if piece.HasField("file"):
                if etag and piece.file.etag != etag:
                    raise Unavailable(
                        f"the connection broke after byte {at:,} of {path}, and the file was written meanwhile: read "
                        "it again from its beginning"
                    )
                etag = piece.file.etag
            data = piece.data if limit_bytes is None else piece.data[: offset + limit_bytes - at]
            at += len(data)
            if data:
                yield data

    async def list_files(self, thread: str, path: str = "", *, pattern: str = "") -> AsyncIterator[FileEntry]:
        """Yield what is in a directory, by name, a page at a time as it is asked for; /workspace without a `path`.

        With a `pattern`, relative to `path`, what matches: *.py in the directory itself, **/*.py however deep. Where
        it changes meanwhile an entry may come twice or be missed. Raises NotFound, NotADirectory.
        """
        asked: dict[str, Any] = {"thread": thread, "path": path, "pattern": pattern, "page_limit": _PAGE_LIMIT}
        async for one in self._listed(self._workspaces.ListFiles, pb.ListFilesRequest, "files", **asked):
            yield _entry(one)

    async def stat_file(self, thread: str, path: str) -> FileEntry:
        """Describe one path; a symbolic link at its end is described, not followed. Raises NotFound."""
        return _entry((await self._ask(self._workspaces.StatFile, pb.StatFileRequest, thread=thread, path=path)).file)

    async def remove_file(self, thread: str, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link or a directory; with `recursive` with all that is in it.

        Repeated after a broken connection only with `missing_ok`: otherwise the cause of a NotFound would be unclear.
        Raises NotFound, and Conflict for a directory that is not empty.
        """
        request = message(pb.RemoveFileRequest, thread=thread, path=path, recursive=recursive, missing_ok=missing_ok)
        await self._unary(self._workspaces.RemoveFile, request, safe=missing_ok)

    async def make_directory(self, thread: str, path: str) -> None:
        """Make a directory and its parents; one that is there is no error. Raises NotADirectory, NoSpace."""
        await self._ask(self._workspaces.MakeDirectory, pb.MakeDirectoryRequest, thread=thread, path=path)


def _entry(one: pb.FileEntry) -> FileEntry:
    kind = enum_name(pb.FileKind, one.kind)
    return record(FileEntry, one, kind=kind if kind in get_args(FileKind) else "other")
