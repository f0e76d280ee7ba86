"""A real server with the gateway's authentication, whose one service says who calls: once, and for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from airlock.connection import Tls
from airlock.wire import Secret, Wire
from gateway.config.config import Config
from gateway.config.model_settings import ModelSettings
from gateway.identity.auth import authentication
from gateway.identity.principal import PRINCIPAL
from gateway.identity.tls import server_credentials
from gateway.policy import Policy, PolicyDocument
from gateway.serving.edge import Authenticator, streaming, unary
from gateway.storage.database import Database
from gateway.tenancy.tenants import Tenant, Tenants


class Who:
    """Answers with "tenant caller scopes"."""

    scope = "tool"

    def __init__(self, authenticate: Authenticator) -> None:
        self.authenticate = authenticate

    @unary
    async def Once(self, tenant: Tenant, request: bytes) -> bytes:  # noqa: N802
        who = PRINCIPAL.get()
        return f"{tenant.name} {who.caller.shown} {','.join(who.scopes)}".encode()

    @unary
    async def Slow(self, tenant: Tenant, request: bytes) -> bytes:  # noqa: N802
        await asyncio.Event().wait()
        return b""

    @streaming
    async def Always(self, tenant: Tenant, request: bytes) -> AsyncIterator[bytes]:  # noqa: N802
        yield tenant.name.encode()
        await asyncio.Event().wait()

    @unary
    async def Upload(self, tenant: Tenant, request: AsyncIterator[bytes]) -> bytes:  # noqa: N802
        return b"".join([piece async for piece in request])


class OfConfig:
    """The tenants of a configuration, without their policies."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def named(self, name: str) -> Tenant:
        Tenants._of(cast(Tenants, self), name)
        return Tenant(name, Policy(PolicyDocument(version=1)), ModelSettings(), {})

    @property
    def _tenants(self) -> Any:
        return self._config.tenants


class Asking(Wire):
    """A client of it."""

    async def once(self) -> str:
        return bytes(await self._unary(self._channel.unary_unary("/test.Who/Once"), b"")).decode()

    async def slow(self) -> None:
        await self._unary(self._channel.unary_unary("/test.Who/Slow"), b"")

    async def always(self) -> AsyncIterator[bytes]:
        async for answer in self._stream(self._channel.unary_stream("/test.Who/Always"), b""):
            yield answer

    def upload(self) -> Any:
        return self._open(self._channel.stream_unary("/test.Who/Upload"))


@dataclass(frozen=True)
class WhoServer:
    """Where it answers, and its database."""

    address: str
    database: Database

    def asking(self, secret: Secret = "", tls: Tls | None = None) -> Asking:
        return Asking(self.address, secret, tls=tls)


@contextlib.asynccontextmanager
async def who_server(directory: Path, **sections: Any) -> AsyncIterator[WhoServer]:
    """Serve with a configuration of these sections; its tenants are acme and other."""
    tenants = {name: {"policy": "none.yaml"} for name in ("acme", "other")}
    config = Config.model_validate({"directory": directory, "tenants": tenants, **sections})
    database = await Database.open(f"sqlite:///{directory}/airlock.db")
    who = Who(authentication(config.identity, config.path, database, cast(Tenants, OfConfig(config))))
    server = grpc.aio.server()
    handlers = {
        "Once": grpc.unary_unary_rpc_method_handler(cast(Any, who.Once)),
        "Slow": grpc.unary_unary_rpc_method_handler(cast(Any, who.Slow)),
        "Always": grpc.unary_stream_rpc_method_handler(cast(Any, who.Always)),
        "Upload": grpc.stream_unary_rpc_method_handler(cast(Any, who.Upload)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", handlers),))
    if config.tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", server_credentials(config.tls, config.path))
    await server.start()
    try:
        yield WhoServer(f"localhost:{port}" if config.tls else f"127.0.0.1:{port}", database)
    finally:
        await server.stop(0)
        await database.close()
