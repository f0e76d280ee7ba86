"""Threads in the Python client: which there are, what was said in them, and what is kept with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.client.messages import message, record
from gateway.client.wire import Wire, pause
from gateway.errors import InvalidArgument, NotFound, Overloaded, Unavailable
from gateway.v1 import thread_service_pb2 as pb
from gateway.v1 import thread_service_pb2_grpc as grpc_pb


@dataclass(frozen=True)
class Thread:
    """A thread. `run_id` is the run that is under way in it, empty without one.

    `metadata` and `messages`, how many it has, are None as lists give it.
    """

    name: str
    created_at: datetime
    run_id: str = ""
    metadata: Mapping[str, Any] | None = None
    messages: int | None = None


@dataclass(frozen=True)
class ThreadMessage:
    """One thing that was said. `tool_calls` are {id, name, arguments}; a tool's answer is to `tool_call_id`."""

    position: int
    role: str
    content: str
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str
    run_id: str


class ThreadCalls(Wire):
    """The calls of ThreadService. ScopeMissing where the key is not for runs; NotFound also for another tenant's."""

    @property
    def _threads(self) -> Any:
        return self._stub(grpc_pb.ThreadServiceStub)

    async def list_threads(self, *, prefix: str = "") -> AsyncIterator[Thread]:
        """Yield threads, the newest first, a page at a time as they are asked for; `prefix` is of their names."""
        listed = self._listed(self._threads.ListThreads, pb.ListThreadsRequest, "threads", name_prefix=prefix)
        async for one in listed:
            yield record(Thread, one, metadata=None, messages=None)

    async def get_thread(self, thread: str) -> Thread:
        """Return a thread with its metadata. Raises NotFound."""
        return _whole((await self._ask(self._threads.GetThread, pb.GetThreadRequest, thread=thread)).thread)

    async def messages(self, thread: str) -> AsyncIterator[ThreadMessage]:
        """Yield what was said in a thread, the oldest first, a page at a time as it is asked for. Raises NotFound."""
        listed = self._listed(self._threads.ListMessages, pb.ListMessagesRequest, "messages", thread=thread)
        async for one in listed:
            yield record(ThreadMessage, one, tool_calls=json.loads(one.tool_calls_json or "[]"))

    async def set_thread_metadata(
        self, thread: str, changed: Mapping[str, Any] | None = None, *, remove: Sequence[str] = ()
    ) -> Thread:
        """Set entries of a thread's metadata, values that JSON has, and remove others; return the thread.

        Its metadata are the entries that were set. One that is not there is made. Raises ThreadBusy while a run is
        under way in it, and InvalidArgument.
        """
        try:
            texts = {key: json.dumps(value) for key, value in (changed or {}).items()}
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"changed: it cannot be written as JSON: {error}") from error
        entries = {"set": texts, "remove": remove}
        set_metadata = self._threads.SetThreadMetadata
        return _whole((await self._ask(set_metadata, pb.SetThreadMetadataRequest, thread=thread, **entries)).thread)

    async def delete_thread(self, thread: str) -> Mapping[str, int]:
        """Remove a thread for good, with its files, messages and runs; return the rows that went, by table.

        Raises NotFound, and ThreadBusy while a run is under way in it. Where the connection broke it is asked again; a
        thread that is not there any more counts as removed then, and no rows are returned.
        """
        request = message(pb.DeleteThreadRequest, thread=thread)
        attempts = self._attempts()
        broke = False
        while True:
            try:
                return dict((await self._unary(self._threads.DeleteThread, request)).removed)
            except NotFound:
                if broke:
                    return {}
                raise
            except (Unavailable, Overloaded) as error:
                broke = broke or isinstance(error, Unavailable)
                await pause(attempts.pause_s(error), None, error)


def _whole(one: pb.Thread) -> Thread:
    return record(Thread, one, metadata={key: json.loads(value) for key, value in one.metadata.items()})
