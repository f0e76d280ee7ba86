"""A grpc.aio server that accepts many calls at once of the most called methods, and closes those that linger.

grpc.aio accepts a method's next call about five turns of the event loop after the last one. Under load, when turns are
long, that is no faster than calls are served: the rest wait in grpc's core, where admission neither sees nor refuses
them, behind the busiest tenant's, and where the core ends some at random.

So calls of these methods are also requested here, many at a time, by the same private steps as in grpc.aio's own loop
(server.pyx.pxi of the grpcio that pyproject.toml pins; https://github.com/grpc/grpc/pull/43461 is to make that loop
faster). With 16 callers a call takes 48 % more time and 40 % more of a processor without it. In two pairs of
`make soak`, of some 20,000 calls without it 6,432 and 8,688 had neither an answer nor a refusal in time, and 8 and 11
ended as CANCELLED; with it 1,740 and none had neither, and each that was refused got a time to try again.

With a grpcio that lacks the steps, calls are accepted as slowly as grpc.aio does, and
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
# What an upgrade of gRPC can take away.
_INNER = "_handle_exceptions"
_STEPS = ("_handle_rpc", "_schedule_rpc_coro", "_MethodResolver", "_RequestCallError")
LINGER_S = 1.0


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
            # A reference to a call would keep grpc's core from closing it (_Lingering).
            del state, handled, rpc


def follow_rpcs(loop: asyncio.AbstractEventLoop, linger_s: float = LINGER_S) -> None:
    """Make a loop close the RPCs whose handler is done; call it before its first server starts."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_Lingering(loop, linger_s).make_task)


class _Lingering:
    """The outer tasks whose inner task is done, and since when.

    grpc.aio serves an RPC in two tasks: an inner one runs the handler and sends the answer, an outer one waits until
    grpc's core has closed the call. Cancelling the inner one does not close the call, so a peer that never opens its
    flow control window keeps it, and the answer in memory, for as long as its connection lives. The core cancels a call
    when its outer task, which has the last reference to it, ends: so that is cancelled once the inner one has been done
    for LINGER_S. With a grpcio whose coroutines have other names nothing is recorded.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, linger_s: float) -> None:
        self._loop = loop
        self._linger_s = linger_s
        self._outer: dict[asyncio.Task[Any], asyncio.Task[Any]] = {}
        self._since: dict[asyncio.Task[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task as asyncio does, and record the current task if the new one serves an RPC."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        if getattr(coro, "__name__", "") == _INNER and (outer := asyncio.current_task(loop)) is not None:
            self._outer[task] = outer
            task.add_done_callback(self._done)
        return task

    def _done(self, inner: asyncio.Task[Any]) -> None:
        outer = self._outer.pop(inner)
        if outer.done():
            return
        self._since[outer] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger_s, self._look)

    def _look(self) -> None:
        """Cancel what has lingered for long enough; entries are in the order of their times."""
        self._timer = None
        until = self._loop.time() - self._linger_s
        for outer, since in list(self._since.items()):
            if since > until and not outer.done():
                self._timer = self._loop.call_at(since + self._linger_s, self._look)
                return
            del self._since[outer]
            outer.cancel()
