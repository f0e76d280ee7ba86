"""Who calls the MCP server: a client of the gateway with the caller's credential, and the thread."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gateway.client import Client
from gateway.mcp.sessions import RequestId

PEER = "airlock.mcp.peer"
"""The key of an HTTP request's scope that has its Peer."""


def _not_cancellable(_request_id: RequestId) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass(frozen=True)
class Peer:
    """The caller of one request, or of all requests of a process.

    `approvals` is the URL that an approval's id is appended to, "" if there is none. `opens_urls` is whether the client
    shows URLs to its user, as its session says; None: the request itself, or its connection, says it. `cancellable` is
    entered for a call that another request may cancel.
    """

    client: Client
    thread: str
    approvals: str = ""
    opens_urls: bool | None = None
    cancellable: Callable[[RequestId], AbstractContextManager[Any]] = _not_cancellable

    def approval_url(self, approval_id: str) -> str:
        """Return where an approval is shown, "" if that is nowhere."""
        return f"{self.approvals}{approval_id}" if self.approvals else ""
