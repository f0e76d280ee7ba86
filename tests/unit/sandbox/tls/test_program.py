"""The relay as a process: how it starts, what ends a call, and that its own network cannot reach it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.errors import DaemonLost
from sandbox.protocols import ProgramSpec
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.tls.own_addresses import drop_own, is_own
from tests.relayed_process import INSTANCE, NAME, RelayedProcess, RelayProcess

ASLEEP = ProgramSpec((b"sleep", b"60"), timeout_s=60, output_limit_bytes=1)


class Made(RelayedProcess):
    """The daemon and the relay of the last sandbox."""

    last: Made

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        Made.last = self


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    authority = ChannelAuthority.open(tmp_path / "keys" / "channels.pem", INSTANCE)
    engine = MemoryEngine(make_process=partial(Made, authority))
    yield await engine.create(SandboxSpec("t", "t", "image"))
    await engine.close()


@pytest.mark.parametrize("dies", ["relay", "daemon"])
async def test_when_relay_or_daemon_is_killed_a_call_fails_and_every_later_one(sandbox: Sandbox, dies: str) -> None:
    call = asyncio.create_task(sandbox.shell.run_program(ASLEEP, stdin=None, on_output=None))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        while not (await sandbox.health()).calls:
            await asyncio.sleep(0.01)
    process = Made.last.relay.process if dies == "relay" else Made.last._process
    assert process is not None
    process.send_signal(signal.SIGTERM if dies == "daemon" else signal.SIGKILL)
    result = await asyncio.wait_for(asyncio.gather(call, return_exceptions=True), 10)
    assert "lost" in str(getattr(result[0], "outcome", type(result[0]))).lower()
    assert not sandbox.alive
    with pytest.raises(DaemonLost):
        await sandbox.health()


async def test_a_tunnel_goes_through_the_relay_and_each_direction_ends_alone(sandbox: Sandbox) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read())[::-1])
        writer.write_eof()
        await writer.drain()
        writer.close()

    sent, received, loop = os.urandom(3 * 1024 * 1024), b"", asyncio.get_running_loop()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        # The sandbox of the memory engine has this machine's loopback.
        with await sandbox.network.connect(server.sockets[0].getsockname()[1]) as tunnel:
            await loop.sock_sendall(tunnel, sent)
            tunnel.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(20):
                while data := await loop.sock_recv(tunnel, 65_536):
                    received += data
    assert received == sent[::-1]
    assert await sandbox.ping()


async def test_a_relay_is_not_reached_from_its_own_network(tmp_path: Path) -> None:
    authority = ChannelAuthority.open(tmp_path / "channels.pem", INSTANCE)
    relay = RelayProcess(
        tmp_path / "daemon.sock", tmp_path, authority, authority.sandbox_identity(NAME), own_network=False
    )
    try:
        port = await asyncio.to_thread(relay.ready)
        # The kernel drops the packets: there is no answer, not even a refusal.
        with socket.socket() as tool_code:
            tool_code.settimeout(0.5)
            with pytest.raises(TimeoutError):
                tool_code.connect(("127.0.0.1", port))
    finally:
        relay.end()


async def test_a_relay_makes_nothing_that_tool_code_of_its_pod_could_open_but_its_port(sandbox: Sandbox) -> None:
    """The containers of a Pod share network, IPC and /dev/shm."""
    assert await sandbox.ping()
    process = Made.last.relay.process
    assert process is not None
    of_process = Path(f"/proc/{process.pid}")
    opened = [os.readlink(file) for file in (of_process / "fd").iterdir()]
    local = [row for row in _rows(of_process / "net" / "unix") if f"socket:[{row[6]}]" in opened]
    assert [row[7:] for row in local if row[7:]] == []
    tcp = (*_rows(of_process / "net" / "tcp"), *_rows(of_process / "net" / "tcp6"))
    assert len([row for row in tcp if row[3] == "0A" and f"socket:[{row[9]}]" in opened]) == 1
    shared = ("/dev/shm", "/SYSV", "/memfd:", "/dev/mqueue")
    mapped = (of_process / "maps").read_text().splitlines()
    assert [line for line in (*opened, *mapped) if any(place in line for place in shared)] == []


def _rows(table: Path) -> list[list[str]]:
    return [line.split() for line in table.read_text().splitlines()[1:]]


def test_an_own_address_is_one_that_can_be_bound() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")
    assert not is_own("2001:db8::1")


def test_a_socket_without_the_filter_is_reached() -> None:
    with socket.socket() as dropping, socket.socket() as serving:
        assert drop_own(dropping)
        for listener, reached in ((dropping, False), (serving, True)):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.socket() as client:
                client.settimeout(0.3)
                assert (client.connect_ex(listener.getsockname()) == 0) is reached


def test_a_relay_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    authority = ChannelAuthority.open(tmp_path / "channels.pem", INSTANCE)
    relay = RelayProcess(tmp_path / "daemon.sock", tmp_path, authority, authority.sandbox_identity(NAME))
    try:
        relay.ready()
        relay.process.terminate()
        assert relay.process.wait(20) == 0
    finally:
        relay.end()


@pytest.mark.parametrize(
    "change, why",
    [
        (("--identity", "/nonexistent/key.pem"), "No such file"),
        (("--authority", "NOT_PEM"), "is not what it must be"),
        (("--identity", "NOT_PEM"), "is not what it must be"),
        (("--listen", "localhost"), "HOST:PORT"),
        (("--listen", "192.0.2.1:1"), "assign requested address"),
    ],
)
def test_a_relay_that_cannot_start_says_why(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    authority = ChannelAuthority.open(tmp_path / "channels.pem", INSTANCE)
    (tmp_path / "identity.pem").write_bytes(authority.sandbox_identity(NAME))
    (tmp_path / "ca.pem").write_text(authority.ca_pem)
    (tmp_path / "nonsense.pem").write_text("nonsense")
    options = {
        "--listen": "127.0.0.1:0",
        "--socket": "/nowhere",
        "--gateway": "airlock://test/gateway",
        "--identity": str(tmp_path / "identity.pem"),
        "--authority": str(tmp_path / "ca.pem"),
        change[0]: change[1].replace("NOT_PEM", str(tmp_path / "nonsense.pem")),
    }
    command = [sys.executable, "-m", "sandbox.tls", *(word for pair in options.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env={**os.environ})
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("airlock channel: cannot start: ")
    assert why in done.stderr
