"""envd's face: what E2B's SDKs send to a sandbox, which the header E2b-Sandbox-Id or the host's name says.

`http://HOST/e2b` with the headers, as with E2B_SANDBOX_URL, or `https://PORT-SANDBOX.DOMAIN`, as with E2B_DOMAIN.
"""

import asyncio
import importlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, NoMatchFound

from gateway.e2b.access import Access
from gateway.e2b.lifecycle import Lifecycle

ENVD_PORT, CODE_PORT = 49983, 49999
_HOST = re.compile(r"(\d{1,5})-([a-z0-9]{1,57})\.")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class ToSandbox:
    """A request to a port of a sandbox, with the path there."""

    sandbox_id: str
    port: int
    path: str
    request: Request
    send: Send


class Calls(Protocol):
    """Answers requests to sandboxes."""

    async def serve(self, asked: ToSandbox) -> None: ...


@dataclass
class LazyCalls:
    """Imports what answers requests with the first of them: most gateways get none."""

    access: Access
    lifecycle: Lifecycle
    _calls: Calls | None = None
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def serve(self, asked: ToSandbox) -> None:
        async with self._loading:
            if self._calls is None:
                # In a thread, since it takes a moment.
                module = await asyncio.to_thread(importlib.import_module, "gateway.e2b.envd_calls")
                self._calls = module.EnvdCalls(self.access, self.lifecycle)
        await self._calls.serve(asked)


class EnvdRoute(BaseRoute):
    """Takes requests that name a sandbox: below a prefix by their header, anywhere by their host."""

    def __init__(self, calls: Calls, prefix: str) -> None:
        self._calls = calls
        self._prefix = prefix

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        headers = Request(scope).headers
        if (host := _HOST.match(headers.get("host", ""))) is not None:
            return Match.FULL, {"e2b": (host[2], int(host[1]), scope["path"])}
        sandbox_id = headers.get("e2b-sandbox-id")
        if sandbox_id is None or not scope["path"].startswith(f"{self._prefix}/"):
            return Match.NONE, {}
        port = headers.get("e2b-sandbox-port", str(ENVD_PORT))
        path = scope["path"].removeprefix(self._prefix)
        return Match.FULL, {"e2b": (sandbox_id, int(port) if port.isdecimal() and len(port) < 6 else 0, path)}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        sandbox_id, port, path = scope["e2b"]
        await self._calls.serve(ToSandbox(sandbox_id, port, path, Request(scope, receive), send))

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)
