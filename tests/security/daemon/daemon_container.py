"""A container that runs the daemon, and a raw client for its socket."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from docker.models.containers import Container

from sandbox.v1 import channel_pb2 as wire


class Client:
    """One connection to the daemon."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(150)  # longer than any call of these tests may take
        self.connection.connect(str(path))

    def send(self, message: wire.Request | wire.Input) -> None:
        body = message.SerializeToString()
        self.connection.sendall(len(body).to_bytes(4, "big") + body)

    def receive(self) -> wire.Reply:
        return wire.Reply.FromString(self._exactly(int.from_bytes(self._exactly(4), "big")))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.connection.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionError("the daemon closed the connection")
            data += more
        return data

    def call(self, **request: object) -> wire.Reply:
        """Send a request and return its final frame; stream frames are dropped."""
        self.send(wire.Request(**request))
        while (reply := self.receive()).WhichOneof("reply") in {"started", "output", "chunk"}:
            pass
        return reply

    def start(self, argv: list[bytes], **fields: object) -> wire.ExecRequest:
        request = wire.ExecRequest(argv=argv, **fields)
        self.send(wire.Request(exec=request))
        return request

    def execute(self, command: str, **fields: object) -> wire.ExecReply:
        """Run a shell command line and return how it ended."""
        reply = self.call(exec=wire.ExecRequest(argv=[b"/bin/sh", b"-c", command.encode()], **fields))
        assert reply.WhichOneof("reply") == "exec", reply
        return reply.exec

    def output(self, command: str, **fields: object) -> str:
        """Run a shell command line and return what it wrote, both streams."""
        reply = self.execute(command, **fields)
        return b"".join(piece.data for piece in reply.output).decode(errors="replace")

    def close(self) -> None:
        self.connection.close()


class Sandbox:
    """A running container."""

    def __init__(self, container: Container, socket_path: Path) -> None:
        self.container = container
        self.socket_path = socket_path
        self._clients: list[Client] = []

    def connect(self) -> Client:
        client = Client(self.socket_path)
        self._clients.append(client)
        return client

    def is_listening(self) -> bool:
        # The socket's file is there before the daemon listens.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return connection.connect_ex(str(self.socket_path)) == 0

    def status(self) -> str:
        self.container.reload()
        return str(self.container.status)

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()


def text(pieces: Iterable[wire.Output]) -> bytes:
    """Return the bytes of pieces of output."""
    return b"".join(piece.data for piece in pieces)
