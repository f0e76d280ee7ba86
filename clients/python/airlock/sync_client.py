"""The client for programs without asyncio: the methods of `Client`, which block.

    with SyncClient("127.0.0.1:7443", api_key) as airlock:
        result = airlock.call_tool("execute", {"command": "true", "timeout_s": 5}, thread="t1")
        for event in airlock.run("fix the tests", thread="t1"):
            ...

The methods are made of Client's, below. sync_client.pyi has their signatures; deploy/stubs generates it.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from airlock.background_loop import BackgroundLoop, Waiting, entered, iterated
from airlock.client import Client
from airlock.connection import Tls
from airlock.ports import PortConnection
from airlock.retry import DEFAULT_RETRY, Retry
from airlock.wire import Secret


class SyncClient:
    """A connection to a gateway for blocking calls; use it as a context manager, or `close()` it.

    It has the methods of Client, with the same arguments. It can be created anywhere and used by several threads at
    once, also where an event loop runs. Streams are iterators; one that is closed, or left early, is cancelled. Ctrl-C
    cancels the call that waits and kills what it started. `on_output` and `caught_up` are plain functions, called in
    the thread that waits; a function as `api_key` is called in the client's own thread.

    A process that is forked before the first call of any client may use it; later, calls in the child raise
    WrongProcess.
    """

    def __init__(
        self, address: str, api_key: Secret = "", *, tls: Tls | None = None, retry: Retry | None = DEFAULT_RETRY
    ) -> None:
        """Take the gateway's address and the caller's credential; without `retry` nothing is tried again."""
        self._client = Client(address, api_key, tls=tls, retry=retry)
        self._background = BackgroundLoop()
        # Also if it is never closed; at the end of the process, before threads stop.
        self._closing = weakref.finalize(self, self._background.close, self._client.aclose)

    def __enter__(self) -> Self:
        """Return this client; it connects on the first call. Raises ClientClosed."""
        self._background.run(self._client.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls in progress in other threads end with ClientClosed. Again, it does nothing."""
        self._closing()


class SyncPortConnection:
    """A PortConnection whose methods block. One thread may read while another one writes."""

    def __init__(self, connection: PortConnection, background: BackgroundLoop) -> None:
        self._connection = connection
        self._background = background

    def read(self, limit_bytes: int = 256 * 1024) -> bytes:
        """Return what has come, at most so many bytes; nothing when the program sends no more. Raises Unavailable."""
        return self._background.run(self._connection.read(limit_bytes))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes. Raises Unavailable if the program takes no more, or the connection has ended."""
        self._background.run(self._connection.write(data))

    def write_eof(self) -> None:
        """Send no more; reading goes on."""
        self._background.run(self._connection.write_eof())

    def close(self) -> None:
        """End both directions at once."""
        self._background.submit(lambda _: self._connection.close())


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of SyncClient that waits for one of Client."""

    @functools.wraps(method)
    def blocking(self: SyncClient, /, *args: Any, **kwargs: Any) -> Any:
        waiting = Waiting[Any](self._background)
        given = [waiting.here(one) if _is_function(one) else one for one in args]
        named = {name: waiting.here(one) if _is_function(one) else one for name, one in kwargs.items()}
        made = method(self._client, *given, **named)
        if inspect.iscoroutine(made):
            return waiting.wait(made)
        if isinstance(made, AbstractAsyncContextManager):
            return entered(self._background, made, lambda one: SyncPortConnection(one, self._background))
        return iterated(waiting, made, self)

    return blocking


def _is_function(value: object) -> bool:
    """Return whether an argument is one to call, and not an input that can be called too."""
    return callable(value) and not hasattr(value, "read")


_ASYNC_ONLY = ("aclose",)
for _name, _method in inspect.getmembers(Client, inspect.isfunction):
    if not _name.startswith("_") and _name not in _ASYNC_ONLY:
        setattr(SyncClient, _name, _blocking(_method))
