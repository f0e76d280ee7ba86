"""Channels: how the daemons of an engine's sandboxes are reached, from this machine or from another one."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from sandbox.client.channel import Channel
from sandbox.engines.background import over
from sandbox.sandbox import Owner


@dataclass(frozen=True)
class Opening:
    """The channel to a sandbox that is being started; `ready` is done when all that the channel needs is there."""

    channel: Channel
    ready: asyncio.Future[Any]

    async def beside(self, starting: asyncio.Future[None]) -> None:
        """Return when the start of the sandbox's container is over, too; raises what either does, once both are."""
        await over(starting)
        await over(self.ready)
        starting.result()
        self.ready.result()


class Channels(Protocol):
    """The channels of one engine. Everything here may raise SandboxError."""

    @property
    def group(self) -> int:
        """The group of a sandbox's pid 1, which may enter the directory of the socket."""

    def mount(self, sandbox_id: str) -> dict[str, Any]:
        """Return what a sandbox's container mounts as the directory of its socket, as the Docker API takes it."""

    def begin(self, owner: Owner | None, sandbox_id: str, *, again: bool = False) -> Opening:
        """Make what a sandbox's channel needs before its container starts, for the first time or `again`.

        `owner` is None for a pooled sandbox.
        """

    def to(self, owner: Owner, sandbox_id: str) -> Channel:
        """Return a channel to a thread's sandbox, which runs."""

    async def claimed(self, owner: Owner, sandbox_id: str, channel: Channel) -> Channel:
        """Give a pooled sandbox to a thread; return the channel to it from then on, in place of the one before."""

    async def stopped(self, sandbox_id: str) -> None:
        """Let go of what only a sandbox that runs needs."""

    async def remove(self, sandbox_id: str) -> None:
        """Remove all of a sandbox's channel; its container is gone. None there is no error."""

    async def left(self) -> Collection[str]:
        """Return the ids of sandboxes of which the engine has a channel, whether or not they have a container."""
