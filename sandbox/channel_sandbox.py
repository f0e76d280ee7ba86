"""A running sandbox whose daemon is reached through a channel, whatever engine made it."""

from __future__ import annotations

import asyncio

from sandbox.channel import Channel
from sandbox.engine import SandboxSpec
from sandbox.errors import DaemonLost
from sandbox.filesystem import WORKSPACE
from sandbox.remote_fs import RemoteFS
from sandbox.remote_shell import DEFAULT_SPILL_LIMIT_BYTES, RemoteShell
from sandbox.v1 import channel_pb2 as pb

_PING_TIMEOUT_S = 1.0


class ChannelSandbox:
    """Satisfies sandbox.engine.Sandbox."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, channel: Channel, posture: pb.Posture) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.posture = posture
        self._channel = channel
        # The environment goes with each command and not with the container: pid 1 has no use for a tenant's secrets.
        self.shell = RemoteShell(
            channel, env=spec.env, spill_limit_bytes=min(DEFAULT_SPILL_LIMIT_BYTES, spec.limits.workspace_bytes)
        )
        self.files = RemoteFS(channel)

    @property
    def alive(self) -> bool:
        """Whether its daemon has kept the protocol so far."""
        return self._channel.lost is None

    async def ping(self) -> bool:
        """Return whether the daemon answers within a second; a slow one is not thereby lost."""
        request = pb.Request(stat=pb.StatRequest(path=WORKSPACE))
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await self._channel.ask(request, "entry", timeout_s=2 * _PING_TIMEOUT_S)
        except (DaemonLost, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Let go of the channel."""
        self._channel.close()
