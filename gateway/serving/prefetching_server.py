"""A grpc.aio server that accepts many calls at once of the most called methods.

grpc.aio accepts a method's next call about five turns of the event loop after the last one. Under load, when turns are
long, that is no faster than calls are served: the rest wait in grpc's core, where admission neither sees nor refuses
them, behind the busiest tenant's, and where the core ends some at random.

So calls of these methods are also requested here, many at a time, by the same private steps as in grpc.aio's own loop
(grpcio 1.85.1, server.pyx.pxi). With a grpcio without them, calls are accepted as slowly as grpc.aio does, and
tests/unit/gateway/serving/test_prefetching_server.py fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # no stub knows it

_AT_ONCE = 16
_STEPS = ("_handle_rpc", "_schedule_rpc_coro", "_MethodResolver", "_RequestCallError")


class PrefetchingServer:
    """Takes services and ports like a grpc.aio.Server."""

    def __init__(
        self,
        often: Collection[str],
        interceptors: Sequence[Any],
        options: Sequence[tuple[str, int]],
        concurrent_rpcs: int,
    ) -> None:
        """`often` are full names, such as /package.Service/Method; calls past `concurrent_rpcs` are refused."""
        self._server = grpc.aio.server(
            interceptors=interceptors, options=options, maximum_concurrent_rpcs=concurrent_rpcs
        )
        self._often = frozenset(often)
        self._interceptors = tuple(interceptors)
        self._concurrent_rpcs = concurrent_rpcs
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._rpcs: set[asyncio.Task[None]] = set()
        self.prefetched = 0
        """The number of calls that bypassed grpc.aio's own loop."""

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self._server.add_generic_rpc_handlers(generic_rpc_handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Register the methods that are called often, and leave the others to their generic handler.

        grpc.aio keeps a waiting task for each registered method and looks at all of them at each call: with all methods
        registered that would be much of a call's cost.
        """
        found = {
            name: handler
            for name, handler in method_handlers.items()
            if f"/{service_name}/{name}" in self._often and all(hasattr(cygrpc, step) for step in _STEPS)
        }
        self._handlers |= {f"/{service_name}/{name}": handler for name, handler in found.items()}
        self._server.add_registered_method_handlers(service_name, found)  # type: ignore[attr-defined]  # no stub

    def add_port(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen, as plain text without credentials; return the port. Raises RuntimeError if that fails."""
        if credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, credentials)

    async def start(self) -> None:
        await self._server.start()
        core: Any = vars(self._server).get("_server")
        if self._handlers and hasattr(core, "_request_registered_call"):
            steps: Any = cygrpc
            resolver = steps._MethodResolver([], self._handlers)  # noqa: SLF001  # see above
            self._accepting = [
                asyncio.create_task(self._accept(core, name, resolver))
                for name in self._handlers
                for _ in range(_AT_ONCE)
            ]

    async def stop(self, grace: float | None) -> None:
        """Accept no more calls; end those in progress after `grace` seconds."""
        await self._server.stop(grace)
        if tasks := {*self._accepting, *self._rpcs}:
            await asyncio.wait(tasks)

    async def _accept(self, core: Any, name: str, resolver: Any) -> None:
        """Accept a method's calls, one after another, until the server stops."""
        steps: Any = cygrpc
        loop = asyncio.get_running_loop()
        method = name.encode()
        while core.is_running():
            try:
                state = await core._request_registered_call(method)  # noqa: SLF001
            except steps._RequestCallError:  # noqa: SLF001  # the server stops
                continue
            too_many = len(self._rpcs) >= self._concurrent_rpcs
            handled = steps._handle_rpc(name, resolver, self._interceptors, state, loop, too_many)  # noqa: SLF001
            # The loop itself references its tasks weakly.
            rpc = loop.create_task(steps._schedule_rpc_coro(handled, state, loop, name))  # noqa: SLF001
            self._rpcs.add(rpc)
            rpc.add_done_callback(self._rpcs.discard)
            self.prefetched += 1
            # A reference to a call would keep grpc's core from closing it (rpc_tasks.py).
            del state, handled, rpc
