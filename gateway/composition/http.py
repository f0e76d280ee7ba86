"""Builds the HTTP listener: the services that it calls in this process, and the protocols that it carries.

It is loaded where a listener is configured: starlette, uvicorn and what they carry are large.
"""

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gateway.composition.foundation import Foundation
from gateway.composition.services import Services, service_files
from gateway.config.config import Config
from gateway.e2b.access import Access
from gateway.e2b.face import E2bFace
from gateway.e2b.lifecycle import Lifecycle
from gateway.http.app import make_app
from gateway.http.calls import Calls
from gateway.http.files import FileContents
from gateway.http.health import health_routes
from gateway.http.json_calls import JsonCalls
from gateway.http.listener import HttpListener, address_of, bind
from gateway.http.openapi import openapi_routes
from gateway.mcp.authorization import Authorization
from gateway.mcp.face import McpFace
from gateway.serving.in_process import InProcessServices
from gateway.serving.listening import is_loopback
from gateway.storage.e2b_store import E2bStore


class Http:
    """The HTTP listener at `address`, bound but not serving yet. `services` takes services as a grpc server does."""

    def __init__(self, config: Config, bound: socket.socket, address: str, services: InProcessServices) -> None:
        self.address = address
        self.services = services
        self._config = config
        self._bound = bound
        self._listener: HttpListener | None = None

    @contextlib.asynccontextmanager
    async def serving(self, base: Foundation, services: Services) -> AsyncIterator[None]:
        """Serve until the block ends; Misconfigured if the TLS files are unusable."""
        calls = Calls(self.services, base.heavy_work)
        json_calls = JsonCalls(calls, service_files())
        mcp = McpFace(calls, Authorization.of(self._config, services.authenticate))
        e2b = self._e2b(base, services)
        routes = [
            *(*e2b.routes(), *health_routes(services.healthy), *openapi_routes()),
            *(*FileContents(calls).routes(), *mcp.routes(), *json_calls.routes()),
        ]
        app = make_app(routes, self._config.http, loopback=is_loopback(self.address))
        self._listener = HttpListener(app, self._bound, tls=self._config.tls, resolve=self._config.path)
        async with mcp.running(), e2b.following(), self._listener.serving():
            yield

    def _e2b(self, base: Foundation, services: Services) -> E2bFace:
        store = E2bStore(base.database)
        access = Access(store, services.authenticate, self.services)
        return E2bFace(access, Lifecycle(store, access, services.threads, services.admin, base.tenants))

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and end requests in progress after `grace_s`."""
        if self._listener is not None:
            await self._listener.stop(grace_s)


def open_http(config: Config, listen: str, interceptors: Sequence[Any], *, shared: bool) -> Http:
    """Return the listener at an address; Misconfigured if that cannot be used."""
    bound = bind(listen, shared=shared)
    return Http(config, bound, address_of(bound, listen), InProcessServices(interceptors))
