"""The channel under a client: it belongs to the event loop that uses it first, and is closed once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from gateway.errors import ClientClosed, WrongEventLoop

CLOSED = "this client is closed; make another"


class Connection:
    """A channel to a gateway, made when it is first asked for. A client can be made where no event loop runs yet."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]
    ) -> None:
        """Take where the gateway is; without `credentials` the connection is not encrypted."""
        self._address = address
        self._credentials = credentials
        self._options = options
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def channel(self) -> grpc.aio.Channel:
        """Return the channel. Raises ClientClosed, and WrongEventLoop outside the loop that it belongs to."""
        if self.closed:
            raise ClientClosed(CLOSED)
        loop = _running_loop()
        if self._channel is None:
            self._loop, self._channel = loop, self._made()
        elif loop is not self._loop:
            raise _wrong(self._loop)
        return self._channel

    async def aclose(self) -> None:
        """Close the channel and end the calls under way; a second time does nothing. Raises WrongEventLoop."""
        channel, gone = self._channel, self._loop is not None and self._loop.is_closed()
        if channel is not None and not gone and _running_loop() is not self._loop:
            raise _wrong(self._loop)
        self.closed, self._channel = True, None
        if channel is not None and not gone:  # a channel whose loop is closed went with it
            await channel.close(None)

    def _made(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        return grpc.aio.secure_channel(self._address, self._credentials, options=self._options)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise WrongEventLoop("a client works in asyncio: await its calls where an asyncio event loop runs") from error


def _wrong(loop: asyncio.AbstractEventLoop | None) -> WrongEventLoop:
    ended = " that is closed by now" if loop is not None and loop.is_closed() else ""
    return WrongEventLoop(
        f"this client belongs to another event loop{ended}, the one it was first used in: make one client for each "
        "event loop, inside it"
    )
