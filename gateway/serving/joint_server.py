"""Several grpc.aio servers of one process at one address, used as if they were one.

Each takes one new call in about five turns of the event loop. Under load, when turns are long, one server alone takes
calls no faster than they are served: the rest wait in grpc's core, in no tenant's queue, where admission neither sees
nor refuses them, and where the core ends some at random. The kernel gives each server its part of the connections; a
client with one connection and more calls than its server takes waits for itself alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio


class JointServer:
    """What services and ports are added to, as to a grpc.aio.Server; the ports' servers must share theirs."""

    def __init__(self, servers: Sequence[grpc.aio.Server]) -> None:
        self._servers = tuple(servers)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Have each find methods in these."""
        for server in self._servers:
            server.add_generic_rpc_handlers(generic_rpc_handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Leave methods to their generic handler, which is added besides.

        For each that is registered grpc.aio keeps a task that waits for its next call, and at each call it looks at
        all of these tasks: with as many methods as there are here that is a good part of what a call costs it.
        """

    def add_port(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen there, as plain text without credentials; return the port. RuntimeError where that cannot be."""
        host, _, asked = address.rpartition(":")
        port = int(asked)
        for server in self._servers:
            where = f"{host}:{port}"
            port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
        return port

    async def start(self) -> None:
        """Take calls from now on."""
        for server in self._servers:
            await server.start()

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; end those that are under way after `grace` seconds, all at once."""
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
