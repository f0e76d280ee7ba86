"""Whom the server serves where the kernel does not say who is at the other end, as gVisor's does not."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sandbox.daemon.serving.server import Server
from sandbox.daemon.settings import read_settings
from sandbox.daemon.supervisor.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire

PROBE = """
import os, sys
from sandbox.daemon.supervisor.launch import describe_tool
def become_tool():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
describe_tool(1, os.fsencode(sys.argv[1]), become_tool)
"""


@pytest.mark.parametrize("closed", [True, False])
async def test_a_peer_that_the_kernel_does_not_name_is_served_only_where_tool_code_is_kept_out(
    tmp_path: Path, *, closed: bool
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = str(tmp_path / "daemon.sock")
    with ours, theirs, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = Server(Spawner(theirs), read_settings(["--socket", path], {}))
        server._posture = wire.Posture(socket_closed_to_tools=closed)
        accepting = asyncio.create_task(server.accept_from(listener))
        # It is in this process, so the kernel names the server itself as its peer.
        reader, writer = await asyncio.open_unix_connection(path)
        request = wire.Request(hello=wire.HelloRequest(protocol_version=1)).SerializeToString()
        try:
            writer.write(len(request).to_bytes(4, "big") + request)
            answer = await reader.read(4)
        except ConnectionError:
            answer = b""
        assert (len(answer) == 4) is closed
        writer.close()
        accepting.cancel()


@pytest.mark.parametrize("mode, closed", [(0o770, b"1"), (0o777, b"0")])
def test_whether_tool_code_is_kept_out_is_found_by_trying(mode: int, closed: bytes) -> None:
    # Not in tmp_path, which is closed as a whole.
    with tempfile.TemporaryDirectory(prefix="airlock-peers-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        Path(directory, "s").chmod(0o777)
        Path(directory).chmod(mode)
        listener.listen()
        probe = [sys.executable, "-c", PROBE, f"{directory}/s"]
        said = subprocess.run(probe, capture_output=True, check=True).stdout
    assert b"\nSocketClosed:\t" + closed in said
    assert b"\nNoNewPrivs:\t" in said
