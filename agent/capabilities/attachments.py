"""Attachments: images and PDFs of the workspace that a model is shown, by view_file or with the user's message.

A thread keeps a reference to the file and the digest of its bytes. For each request the files are read again: one that
has changed or is gone is a line of text, and so are all but the newest. A file is what its first bytes say.
"""

import hashlib
import re
from dataclasses import dataclass, replace

from pydantic import Field

from agent.capabilities.filesystem import FilePath
from agent.capabilities.media_format import Media, media_of
from agent.errors import ModelError
from agent.filesystem import FileSystem
from agent.hooks.hook import Hook, InferenceRequest, NextInference
from agent.messages import Attachment, Message, ToolResult
from agent.models.shown_message import left_out
from agent.state import ModelResponse
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

VIEW = "view_file"
FILE_LIMIT_BYTES = 4 * 1024 * 1024
SHOWN_LIMIT = 8
SHOWN_LIMIT_BYTES = 16 * 1024 * 1024

_VIEW = "Look at an image (PNG, JPEG, GIF, WebP) or a PDF: it is shown to you with the result. For text use read_file."
_CHANGED = f"it has changed since; {VIEW} shows it as it is now"
_GONE = "it is no longer there"
# How endpoints say that a model, or a server, takes no images or files.
_ABOUT_FILES = re.compile(
    r"image|vision|multi-?modal|mmproj|content (part|type)|content.{0,40}string|unsupported (content|media)|\bfiles?\b",
    re.IGNORECASE,
)
_NO_VISION = (
    "this request shows the model images or PDFs: if it does not take them, remove `attachments` from the agent's "
    "capabilities"
)


@dataclass(frozen=True)
class AttachedFile:
    """A file that can be shown: the reference to it, and what it is."""

    attachment: Attachment
    media: Media

    def __str__(self) -> str:
        return f"{self.attachment.path}: {self.media}, {self.attachment.size_bytes:,} bytes"


async def attached_file(files: FileSystem, path: str, limit_bytes: int = FILE_LIMIT_BYTES) -> AttachedFile:
    """Look at a file that a model is to be shown.

    Raises ValueError for one that it cannot be shown, OSError for one that cannot be read.
    """
    entry = await files.stat(path)
    if entry.type != "file":
        raise ValueError(f"{path} is not a file (type: {entry.type}); only files can be shown")
    content = None if entry.size_bytes > limit_bytes else await _read(files, path, limit_bytes)
    if content is None:
        raise ValueError(
            f"{path} is larger than the {limit_bytes:,} bytes that a file to be shown may have: make a smaller copy"
        )
    try:
        media = media_of(content.data)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    size_bytes = len(content.data)
    attachment = Attachment(path=path, media_type=media.media_type, size_bytes=size_bytes, sha256=content.sha256)
    return AttachedFile(attachment, media)


@dataclass(frozen=True)
class _Content:
    data: bytes
    sha256: str


async def _read(files: FileSystem, path: str, limit_bytes: int) -> _Content | None:
    """Return a file's bytes, None for one with more than `limit_bytes`. Raises what the file system raises."""
    data, digest = bytearray(), hashlib.sha256()
    pieces = files.read(path, length=limit_bytes + 1)
    async for piece in pieces:
        digest.update(piece)  # piece by piece, for the event loop is everybody's
        data += piece
        if len(data) > limit_bytes:  # it grew, or more came than was asked for
            return None
    return _Content(bytes(data), digest.hexdigest())


class _ViewFile(ToolArguments):
    path: FilePath = Field(description="absolute, or relative to /workspace")


@dataclass(frozen=True)
class _View:
    files: FileSystem
    limit_bytes: int

    async def view_file(self, asked: _ViewFile, _context: ToolContext) -> ToolResult:
        try:
            seen = await attached_file(self.files, asked.path, self.limit_bytes)
        except ValueError as error:
            return ToolResult.error(str(error))
        return ToolResult(f"[{seen}]".encode("utf-8", "replace"), attachments=(seen.attachment,))


class ShownAttachments(Hook):
    """Reads the files that a request shows: the newest ones, at most so many and so many bytes of them.

    Subagents inherit it, as they do view_file.
    """

    name = "attachments"
    mandatory = True

    def __init__(self, files: FileSystem, limit: int, limit_bytes: int) -> None:
        self._files = files
        self._limit = limit
        self._limit_bytes = limit_bytes

    async def around_inference(self, request: InferenceRequest, next_: NextInference) -> ModelResponse:
        if not any(message.attachments for message in request.messages):
            return await next_(request)
        shown = _Shown(self._files, self._limit, self._limit_bytes)
        newest_first = [await shown.take(message) for message in reversed(request.messages)]
        try:
            return await next_(replace(request, messages=tuple(newest_first[::-1]), contents=shown.contents))
        except ModelError as error:
            if shown.contents and _ABOUT_FILES.search(str(error)):
                error.args = (f"{error}; {_NO_VISION}",)
            raise


class _Shown:
    """What one request shows, gathered from its newest message on."""

    def __init__(self, files: FileSystem, limit: int, limit_bytes: int) -> None:
        self.contents: dict[str, bytes] = {}
        self._files = files
        self._left = limit
        self._left_bytes = limit_bytes
        self._old = f"a request shows the newest {limit} files and {limit_bytes:,} bytes at most; {VIEW} shows it again"

    async def take(self, message: Message) -> Message:
        """Return a message with the attachments that are shown; each of the others is a line of its text."""
        reasons = {one: await self._take(one) for one in reversed(message.attachments)}
        return left_out(message, {one: reasons[one] for one in message.attachments if reasons[one]})

    async def _take(self, asked: Attachment) -> str:
        """Count a file among those that are shown; return why it is not one of them, "" if it is."""
        if not self._left or asked.size_bytes > self._left_bytes:
            self._left = 0  # so are all older ones, also those that would fit: what is shown has no gaps
            return self._old
        if asked.sha256 not in self.contents:
            try:
                content = await _read(self._files, asked.path, asked.size_bytes)
            except FileNotFoundError:
                return _GONE
            except Exception as error:  # a link, a failing sandbox: the request goes on without this file
                return f"it could not be read: {' '.join(str(error).split())[:200]}"
            if content is None or content.sha256 != asked.sha256:
                return _CHANGED
            self.contents[asked.sha256] = content.data
        self._left -= 1
        self._left_bytes -= asked.size_bytes
        return ""


def attachments(
    files: FileSystem,
    *,
    file_limit_bytes: int = FILE_LIMIT_BYTES,
    limit: int = SHOWN_LIMIT,
    limit_bytes: int = SHOWN_LIMIT_BYTES,
) -> Capability:
    """Return view_file, which shows the model a file of up to `file_limit_bytes`, and the hook that reads such files.

    A request shows the newest `limit` files, `limit_bytes` in all at most. Raises ValueError for a limit below 1, and
    where a file could be too large for every request.
    """
    if min(limit, file_limit_bytes) < 1 or file_limit_bytes > limit_bytes:
        raise ValueError(
            f"attachments: limit is {limit}, file_limit_bytes {file_limit_bytes}, limit_bytes {limit_bytes}; they must "
            "be at least 1, and limit_bytes at least file_limit_bytes"
        )
    tool = Tool(VIEW, _VIEW, _ViewFile, _View(files, file_limit_bytes).view_file, read_only=True)
    return Capability("attachments", hooks=(ShownAttachments(files, limit, limit_bytes),), tools=(tool,))
