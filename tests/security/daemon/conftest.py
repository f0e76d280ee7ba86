"""The real daemon in a real container, hardened as the gateway does it, and a raw client for its socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import google.protobuf
import pytest
from docker.models.containers import Container

from sandbox.v1 import channel_pb2 as wire

REPOSITORY = Path(__file__).parents[3]
PROTOBUF = Path(google.protobuf.__file__).parents[1]
IMAGES = ("airlock-sandbox", "airlock-dev-base")
GATEWAY_GID = 10003


class Client:
    """One connection to the daemon."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(30)
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

    def status(self) -> str:
        self.container.reload()
        return str(self.container.status)

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    """Return whether the condition came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="session")
def image() -> str:
    engine = docker.from_env()
    for name in IMAGES:
        if engine.images.list(name=name):
            return name
    pytest.fail(f"none of the images {', '.join(IMAGES)} is there; `make setup` builds them")


@pytest.fixture(scope="module")
def running(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    channel = tmp_path_factory.mktemp("channel")
    channel.chmod(0o770)
    import os

    os.chown(channel, 0, GATEWAY_GID)  # fails clearly without root, as the daemon's directory must be root's
    container = docker.from_env().containers.run(
        image,
        ["python3", "-m", "sandbox.daemon"],
        entrypoint="",
        detach=True,
        user=f"0:{GATEWAY_GID}",
        labels={"airlock.kind": "devtest"},
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["CHOWN", "SETUID", "SETGID", "KILL"],
        security_opt=["no-new-privileges"],
        read_only=True,
        tmpfs={"/tmp": "size=256m,mode=1777", "/workspace": "size=512m"},
        pids_limit=256,
        mem_limit="512m",
        memswap_limit="512m",
        working_dir="/opt/dev",
        volumes={
            str(channel): {"bind": "/run/airlock", "mode": "rw"},
            str(REPOSITORY / "sandbox"): {"bind": "/opt/dev/sandbox", "mode": "ro"},
            str(PROTOBUF): {"bind": "/opt/dev/google", "mode": "ro"},
        },
    )
    sandbox = Sandbox(container, channel / "daemon.sock")
    try:
        if not eventually(sandbox.socket_path.exists, 10):
            pytest.fail(f"the daemon did not come up: {container.logs().decode()}")
        yield sandbox
    finally:
        sandbox.close_clients()
        container.remove(force=True, v=True)


@pytest.fixture
def sandbox(running: Sandbox) -> Iterator[Sandbox]:
    yield running
    running.close_clients()


@pytest.fixture
def client(sandbox: Sandbox) -> Client:
    return sandbox.connect()
