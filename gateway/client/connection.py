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
    """A channel to a gateway, created when first asked for, because a client may be created outside an event loop."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]
    ) -> None:
        """Take the gateway's address; without `credentials` the connection is not encrypted."""
        self._address = address
        self._credentials = credentials
        self._options = options
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def channel(self) -> grpc.aio.Channel:
        """Return the channel. Raises ClientClosed, and WrongEventLoop in another loop than its own."""
        if self.closed:
            raise ClientClosed(CLOSED)
        loop = self._checked_loop()
        if self._channel is None:
            self._loop = loop
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, options=self._options)
            else:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, options=self._options)
        return self._channel

    async def aclose(self) -> None:
        """Close the channel and end active calls; a second time does nothing. Raises WrongEventLoop."""
        channel = self._channel
        open_ = channel is not None and not (self._loop is not None and self._loop.is_closed())
        if open_:
            self._checked_loop()
        self.closed, self._channel = True, None
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
