"""Sandboxes in the Python client: which live, and stopping one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.client.wire import Wire, message
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb

_PAGE = 200


@dataclass(frozen=True)
class Sandbox:
    """A container with a thread's workspace. `calls` are under way in it on the gateway that answered."""

    id: str
    thread: str
    image: str
    runtime: str
    created_at: datetime
    calls: int


class SandboxCalls(Wire):
    """The calls of SandboxService."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sandboxes: Any = grpc_pb.SandboxServiceStub(self._channel)

    async def sandboxes(self, *, runtime: str = "", image: str = "") -> AsyncIterator[Sandbox]:
        """Yield the tenant's sandboxes that live, by id, a page at a time as it is asked for.

        Those of a `runtime` (runc, runsc) or of an `image`, as the policy names it, where one is given.
        """
        token = ""
        while True:
            request = message(pb.ListSandboxesRequest, page_size=_PAGE, page_token=token, runtime=runtime, image=image)
            page = await self._unary(self._sandboxes.ListSandboxes, request, safe=True)
            for one in page.sandboxes:
                yield _sandbox(one)
            token = page.next_page_token
            if not token:
                return

    async def get_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread. Raises NotFound where none lives."""
        request = message(pb.GetSandboxRequest, thread=thread)
        return _sandbox((await self._unary(self._sandboxes.GetSandbox, request, safe=True)).sandbox)

    async def stop_sandbox(self, thread: str) -> Sandbox:
        """Remove the sandbox of a thread with all that runs in it, and return it as it was. Its files stay.

        Raises NotFound where none lives, also because an answer was lost and it is stopped already, and SandboxBusy
        while a call is under way in it, on whichever gateway.
        """
        request = message(pb.StopSandboxRequest, thread=thread)
        return _sandbox((await self._unary(self._sandboxes.StopSandbox, request, safe=True)).sandbox)


def _sandbox(one: pb.Sandbox) -> Sandbox:
    return Sandbox(one.id, one.thread, one.image, one.runtime, one.created_at.ToDatetime(UTC), one.calls)
