"""Threads in the Python client: their messages and metadata."""

import functools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airlock.errors import InvalidArgument, NotFound, Unavailable
from airlock.messages import Fields, record
from airlock.v1 import thread_service_pb2 as pb
from airlock.wire import Wire


@dataclass(frozen=True)
class Thread:
    """A thread. `run_id` is its active run, empty without one.

    Lists omit `metadata` and `messages` (the number of messages).
    """

    name: str
    created_at: datetime
    run_id: str = ""
    metadata: Mapping[str, Any] | None = None
    messages: int | None = None


@dataclass(frozen=True)
class Attachment:
    """A file of the workspace that the model is shown with a message, as it was when it was attached."""

    path: str
    media_type: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ThreadMessage:
    """A message. `tool_calls` are {id, name, arguments}; a tool's result answers `tool_call_id`."""

    position: int
    role: str
    content: str
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str
    run_id: str
    attachments: Sequence[Attachment] = ()


class ThreadCalls(Wire):
    """The calls of ThreadService. ScopeMissing if the key is not for runs; NotFound also for another tenant's."""

    def list_threads(self, *, prefix: str = "") -> AsyncIterator[Thread]:
        """Yield threads whose names have a prefix, newest first."""
        made = functools.partial(record, Thread, metadata=None, messages=None)
        return self._listed(made, pb.ListThreadsRequest, "threads", name_prefix=prefix)

    async def get_thread(self, thread: str) -> Thread:
        """Return a thread with its metadata. Raises NotFound."""
        return _thread((await self._ask(pb.GetThreadRequest, thread=thread)).thread)

    def messages(self, thread: str) -> AsyncIterator[ThreadMessage]:
        """Yield the messages of a thread, oldest first. Raises NotFound."""
        return self._listed(_message, pb.ListMessagesRequest, "messages", thread=thread)

    async def set_thread_metadata(
        self, thread: str, changed: Mapping[str, Any] | None = None, *, remove: Sequence[str] = ()
    ) -> Thread:
        """Set entries of a thread's metadata to JSON values and remove others; create a missing thread.

        The returned thread has only the entries that were set. Raises ThreadBusy during a run, and InvalidArgument.
        """
        try:
            texts = {key: json.dumps(value) for key, value in (changed or {}).items()}
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"changed: it cannot be written as JSON: {error}") from error
        entries: Fields = {"set": texts, "remove": remove}
        return _thread((await self._ask(pb.SetThreadMetadataRequest, thread=thread, **entries)).thread)

    async def delete_thread(self, thread: str) -> Mapping[str, int]:
        """Delete a thread with its files, messages and runs; return the number of deleted rows by table.

        Raises NotFound, and ThreadBusy during a run. If the connection breaks, the client asks again; a thread that no
        longer exists then counts as deleted, and no rows are returned.
        """
        broke = False

        async def once(_: float | None) -> Mapping[str, int]:
            nonlocal broke
            try:
                return dict((await self._ask(pb.DeleteThreadRequest, safe=False, thread=thread)).removed)
            except Unavailable:
                broke = True
                raise
            except NotFound:
                if broke:
                    return {}
                raise

        return await self._again(once)


def _thread(one: pb.Thread) -> Thread:
    return record(Thread, one, metadata={key: json.loads(value) for key, value in one.metadata.items()})


def _message(one: pb.ThreadMessage) -> ThreadMessage:
    return record(ThreadMessage, one, tool_calls=json.loads(one.tool_calls_json or "[]"))
