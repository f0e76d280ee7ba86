"""The channel of a client: its TLS, and the event loop that it belongs to."""

import asyncio
import functools
import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from airlock.errors import ClientClosed, Misconfigured, WrongEventLoop, WrongProcess

CLOSED = "this client is closed; make another"
FORKED = (
    "a client was used before this process was forked, and grpc does not survive that: fork before the first call of "
    "any client, or start processes with the method `spawn`"
)


@functools.cache
def _process_of_grpc() -> int:
    """Return the process in which a client first opened a channel; its children inherit the answer."""
    return os.getpid()


@dataclass(frozen=True)
class Tls:
    """PEM files. Without `ca` grpc's roots are used; `certificate` and `key` identify the client.

    `server_name` is the name in the gateway's certificate if it is not the host of the address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the channel's credentials; Misconfigured for a file that cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise Misconfigured("TLS: a client's certificate and its key are given together")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.certificate))

    def options(self) -> tuple[tuple[str, str], ...]:
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


AMBIENT: ContextVar[Tls | None] = ContextVar("client_tls", default=None)
"""The default of clients; the command line sets it once for all subcommands."""


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"TLS: {path}: {error.strerror}") from error


class Connection:
    """A channel to a gateway, created when first used, because a client may be created outside an event loop."""

    def __init__(self, address: str, tls: Tls | None, options: Sequence[tuple[str, Any]]) -> None:
        """Take the gateway's address; without any `tls` the connection is not encrypted."""
        self._address = address
        self._tls = tls or AMBIENT.get()
        self._options = (*options, *(() if self._tls is None else self._tls.options()))
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Bind the client to this event loop; it connects on the first call. Raises ClientClosed, WrongEventLoop."""
        self._open_channel()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def _open_channel(self) -> Any:
        """Return the channel. Raises ClientClosed, and WrongEventLoop in another loop than its own."""
        if self._closed:
            raise ClientClosed(CLOSED)
        if _process_of_grpc() != os.getpid():
            raise WrongProcess(FORKED)  # a call would hang, also of another client
        loop = self._checked_loop()
        if self._channel is None:
            self._loop = loop
            if self._tls is None:
                self._channel = grpc.aio.insecure_channel(self._address, options=self._options)
            else:
                credentials = self._tls.credentials()
                self._channel = grpc.aio.secure_channel(self._address, credentials, options=self._options)
        return self._channel

    async def aclose(self) -> None:
        """Close the connection; calls in progress end with ClientClosed. Closing again does nothing.

        Raises WrongEventLoop.
        """
        channel = self._channel
        open_ = channel is not None and not (self._loop is not None and self._loop.is_closed())
        if open_:
            self._checked_loop()
        self._closed, self._channel = True, None
        if channel is not None and open_:  # closing a loop closes its channels
            await channel.close(None)

    def _checked_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, which must be the channel's if there is one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise WrongEventLoop(
                "a client works in asyncio: await its calls where an asyncio event loop runs"
            ) from error
        if self._loop is not None and loop is not self._loop:
            ended = " that is closed by now" if self._loop.is_closed() else ""
            raise WrongEventLoop(
                f"this client belongs to another event loop{ended}, the one it was first used in: make one client for "
                "each event loop, inside it"
            )
        return loop
