"""RemoteNetwork: connections to and from programs of a sandbox, as tunnels through its daemon."""

import socket
from dataclasses import dataclass

from sandbox.client.channel import Channel
from sandbox.errors import DaemonLost, InvalidArgument
from sandbox.v1 import channel_pb2 as pb

_PORTS = 65_535
_ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True, eq=False)
class RemoteNetwork:
    """Satisfies sandbox.protocols.Network."""

    channel: Channel

    async def open(self) -> int:
        return await self._proxy(opened=True)

    async def close(self) -> None:
        await self._proxy(opened=False)

    async def accept(self) -> socket.socket:
        return await self.channel.tunnel(pb.Request(proxy_accept=pb.ProxyAcceptRequest()), timeout_s=None)

    async def connect(self, port: int) -> socket.socket:
        if not 1 <= port <= _PORTS:
            raise InvalidArgument(f"port {port}: give 1 to {_PORTS:,}")
        request = pb.Request(port_connect=pb.PortConnectRequest(port=port))
        return await self.channel.tunnel(request, timeout_s=_ANSWER_TIMEOUT_S)

    async def _proxy(self, *, opened: bool) -> int:
        def port(reply: pb.ProxyReply) -> int:
            if not (1 <= reply.port <= _PORTS if opened else reply.port == 0):
                raise DaemonLost(f"the sandbox daemon says that its proxy listens on port {reply.port}")
            return reply.port

        request = pb.Request(proxy=pb.ProxyRequest(open=opened))
        return await self.channel.query(request, "proxy", port, timeout_s=_ANSWER_TIMEOUT_S)
