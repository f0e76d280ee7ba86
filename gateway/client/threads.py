"""Threads in the Python client: which there are, what was said in them, and what is kept with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.client.wire import Wire, message, pause
from gateway.errors import InvalidArgument, NotFound, Overloaded, Unavailable
from gateway.v1 import thread_service_pb2 as pb
from gateway.v1 import thread_service_pb2_grpc as grpc_pb

_PAGE = 200


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
        token = ""
        while True:
            request = message(pb.ListThreadsRequest, name_prefix=prefix, page_size=_PAGE, page_token=token)
            page = await self._unary(self._threads.ListThreads, request, safe=True)
            for one in page.threads:
                yield Thread(one.name, one.created_at.ToDatetime(UTC), one.run_id)
            token = page.next_page_token
            if not token:
                return

    async def get_thread(self, thread: str) -> Thread:
        """Return a thread with its metadata. Raises NotFound."""
        request = message(pb.GetThreadRequest, thread=thread)
        return _whole((await self._unary(self._threads.GetThread, request, safe=True)).thread)

    async def messages(self, thread: str) -> AsyncIterator[ThreadMessage]:
        """Yield what was said in a thread, the oldest first, a page at a time as it is asked for. Raises NotFound."""
        token = ""
        while True:
            request = message(pb.ListMessagesRequest, thread=thread, page_size=_PAGE, page_token=token)
            page = await self._unary(self._threads.ListMessages, request, safe=True)
            for one in page.messages:
                calls = json.loads(one.tool_calls_json) if one.tool_calls_json else []
                yield ThreadMessage(one.position, one.role, one.content, calls, one.tool_call_id, one.run_id)
            token = page.next_page_token
            if not token:
                return

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
        request = message(pb.SetThreadMetadataRequest, thread=thread, set=texts, remove=remove)
        return _whole((await self._unary(self._threads.SetThreadMetadata, request, safe=True)).thread)

    async def delete_thread(self, thread: str) -> Mapping[str, int]:
        """Remove a thread for good, with its files, messages and runs; return the rows that went, by table.

        Raises NotFound, and ThreadBusy while a run is under way in it. Where the connection broke it is asked again; a
        thread that is not there any more counts as removed then, and no rows are told.
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
    metadata = {key: json.loads(value) for key, value in one.metadata.items()}
    return Thread(one.name, one.created_at.ToDatetime(UTC), one.run_id, metadata, one.messages)
