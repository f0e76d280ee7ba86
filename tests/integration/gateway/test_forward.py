"""ForwardPort through a real gateway and its client; the sandboxes are plain processes, so their loopback is ours."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airlock.v1 import sandbox_service_pb2 as pb
from gateway.client import (
    Cancelled,
    Client,
    InvalidArgument,
    NotFound,
    Overloaded,
    PortConnection,
    QuotaExceeded,
    SandboxBusy,
    TooLarge,
    Unavailable,
)
from tests.gateway_process import AIRLOCK, Home, Served, make_home, served
from tests.waiting import eventually

MIB = 1024 * 1024
STREAMS = 60
ENV = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "GRPC_ENABLE_FORK_SUPPORT": "1"}
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class World:
    home: Home
    gateway: Served
    other_key: str
    few_keys: Mapping[str, str]

    def forwards(self, thread: str) -> list[tuple[str, int, dict[str, int]]]:
        """Return what the audit says of a thread's connections: outcome, bytes, details."""
        found = self.home.rows(
            "SELECT thread, outcome, size_bytes, details FROM audit_records WHERE kind = 'forward' ORDER BY sequence"
        )
        return [(outcome, size, json.loads(details)) for of, outcome, size, details in found if of == thread]

    def recorded(self, thread: str, count: int = 1) -> list[tuple[str, int, dict[str, int]]]:
        assert eventually(lambda: len(self.forwards(thread)) == count, 10), self.forwards(thread)
        return self.forwards(thread)


def memory_home(directory: Path) -> Home:
    home = make_home(directory)
    home.configure(sandbox={"engine": "memory"}, admission={"streams_per_tenant": STREAMS})
    return home


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = memory_home(tmp_path_factory.mktemp("forward"))
    policy = (home.config.parent / "policies" / "default.yaml").read_text(encoding="utf-8")
    other = home.add_tenant("other")
    quotas = ("tool_calls_per_minute: 5", "bytes_per_day: 2000")
    few = {quota: home.add_tenant(quota[:5], f"{policy}\nquotas: {{{quota}}}\n") for quota in quotas}
    with served(home, ENV) as gateway:
        yield World(home, gateway, other, few)


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    async with Client(world.gateway.address, world.home.key, retry=None) as made:
        yield made


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """Serve each connection with a handler, as a program in a sandbox would; yield the port."""
    served_: list[asyncio.Task[None]] = []

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(
        lambda *connection: served_.append(asyncio.create_task(handled(*connection))), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*served_), 10)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(MIB):
        writer.write(data)
        await writer.drain()


async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"you said " + await reader.read())
    await writer.drain()


async def read_all(connection: PortConnection) -> bytes:
    return b"".join([data async for data in pieces(connection)])


async def pieces(connection: PortConnection) -> AsyncIterator[bytes]:
    while data := await connection.read():
        yield data


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_bytes_go_both_ways_and_the_connection_is_on_record(world: World, client: Client) -> None:
    await client.create_sandbox("echo")
    async with listening(echo) as port, client.forward_port("echo", port) as connection:
        for word in (b"one", b"two" * 1000):
            await connection.write(word)
            came = b""
            while len(came) < len(word):
                came += await connection.read()
            assert came == word
        now = await client.get_sandbox("echo")
        assert (now.calls, now.idle_since) == (1, None), "it is in use"
        await connection.write_eof()
        assert await connection.read() == b""
    assert world.forwards("echo") == [("completed", 6006, {"port": port, "bytes_up": 3003, "bytes_down": 3003})]
    assert (await client.get_sandbox("echo")).calls == 0


async def test_each_direction_has_an_end_of_its_own(client: Client) -> None:
    await client.create_sandbox("halves")
    async with listening(answer_at_the_end) as port, client.forward_port("halves", port) as connection:
        await connection.write(b"hello")
        await connection.write_eof()
        assert await read_all(connection) == b"you said hello"

    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        got.set_result(await reader.read())

    async with listening(end_first) as port, client.forward_port("halves", port) as connection:
        assert await connection.read() == b""
        await connection.write(b"still ")
        await connection.write(b"heard")
        await connection.write_eof()
        assert await got == b"still heard"


async def test_a_program_that_answers_before_it_has_read_everything_is_heard(world: World, client: Client) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"n" * MIB)
        writer.write_eof()
        while await reader.read(MIB):
            pass

    await client.create_sandbox("early")
    async with listening(refuse) as port, client.forward_port("early", port) as connection:
        await connection.write(b"x" * 8 * MIB)
        await connection.write_eof()
        assert await read_all(connection) == b"n" * MIB
    assert world.recorded("early")[0][1] == 9 * MIB


async def test_a_program_that_resets_the_connection_ends_it_and_the_sandbox_lives(client: Client) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.transport.abort()

    await client.create_sandbox("reset")
    async with listening(reset) as port:
        with contextlib.suppress(Unavailable):
            async with client.forward_port("reset", port) as connection:
                await connection.write(b"x")
                assert await connection.read() == b""
    assert (await client.get_sandbox("reset")).state == "running"


async def test_fifty_connections_are_open_at_once(world: World, client: Client) -> None:
    await client.create_sandbox("many")
    opened = asyncio.Barrier(50)

    async def one(number: int, port: int) -> None:
        async with client.forward_port("many", port) as connection:
            await opened.wait()
            await connection.write(b"%d" % number)
            await connection.write_eof()
            assert await read_all(connection) == b"%d" % number

    async with listening(echo) as port:
        await asyncio.gather(*(one(number, port) for number in range(50)))
    assert {outcome for outcome, _, _ in world.recorded("many", 50)} == {"completed"}


async def test_a_tenant_has_so_many_streams_and_no_more(world: World, client: Client) -> None:
    await client.create_sandbox("full")
    async with listening(echo) as port, contextlib.AsyncExitStack() as stack:
        for _ in range(STREAMS):
            await stack.enter_async_context(client.forward_port("full", port))
        with pytest.raises(Overloaded, match="streams"):
            await stack.enter_async_context(client.forward_port("full", port))
        async with Client(world.gateway.address, world.other_key) as other:  # another tenant has its own
            await other.create_sandbox("full")
            async with other.forward_port("full", port) as connection:
                await connection.write(b"x")
                assert await connection.read() == b"x"


async def test_a_slow_reader_holds_up_the_program_and_costs_the_gateway_nothing(world: World, client: Client) -> None:
    data = os.urandom(MIB) * 64
    sent = 0

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for at in range(0, len(data), MIB):
            writer.write(data[at : at + MIB])
            await writer.drain()
            sent += MIB

    await client.create_sandbox("slow")
    before = resident_bytes(world.gateway.process.pid)
    async with listening(send) as port, client.forward_port("slow", port) as connection:
        await connection.write_eof()
        while True:
            last = sent
            await asyncio.sleep(0.5)
            if last == sent:
                break
        assert sent < 32 * MIB
        digest = hashlib.sha256()
        async for piece in pieces(connection):
            digest.update(piece)
            assert resident_bytes(world.gateway.process.pid) - before < 32 * MIB
    assert digest.digest() == hashlib.sha256(data).digest()
    assert world.recorded("slow")[0][2]["bytes_down"] == 64 * MIB


async def test_a_slow_program_holds_up_the_writer_and_costs_the_gateway_nothing(world: World, client: Client) -> None:
    data = os.urandom(MIB) * 64
    reading = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        digest = hashlib.sha256()
        while piece := await reader.read(MIB):
            digest.update(piece)
        writer.write(digest.digest())
        await writer.drain()

    await client.create_sandbox("take")
    before = resident_bytes(world.gateway.process.pid)
    async with listening(take) as port, client.forward_port("take", port) as connection:
        writing = asyncio.create_task(connection.write(data))
        await asyncio.sleep(1)
        assert not writing.done()
        assert resident_bytes(world.gateway.process.pid) - before < 32 * MIB
        reading.set()
        await writing
        await connection.write_eof()
        assert await read_all(connection) == hashlib.sha256(data).digest()
    assert resident_bytes(world.gateway.process.pid) - before < 32 * MIB


async def test_a_caller_that_leaves_ends_the_connection_of_the_program(world: World, client: Client) -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        ended.set()

    await client.create_sandbox("left")
    async with listening(wait) as port:
        async with client.forward_port("left", port) as connection:
            await connection.write(b"x")
        await asyncio.wait_for(ended.wait(), 10)
        assert [outcome for outcome, _, _ in world.recorded("left")] == ["cancelled"]
        ended.clear()
        async with client.forward_port("left", port) as connection:
            reading = asyncio.create_task(connection.read())
            await asyncio.sleep(0.1)
            reading.cancel()
            await asyncio.wait_for(ended.wait(), 10)

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * MIB)
            await writer.drain()

    async with listening(flood) as port, client.forward_port("left", port):  # what comes is not read
        await asyncio.sleep(0.5)
    assert [outcome for outcome, _, _ in world.recorded("left", 3)] == ["cancelled"] * 3
    assert (await client.get_sandbox("left")).calls == 0


async def test_where_nothing_listens_is_said_and_nothing_is_made(world: World, client: Client) -> None:
    async def refused(thread: str, port: int, of: Client = client) -> str:
        with pytest.raises(NotFound) as caught:
            async with of.forward_port(thread, port):
                pass
        return str(caught.value)

    port = free_port()
    assert "'never'" in await refused("never", port)
    await client.create_sandbox("here")
    assert f"nothing listens on port {port}" in await refused("here", port)
    async with listening(echo) as port:
        async with client.forward_port("here", port):
            pass
        async with Client(world.gateway.address, world.other_key) as other:
            theirs = await refused("here", port, other)
            assert theirs == (await refused("nowhere", port, other)).replace("nowhere", "here")
        assert (await client.stop_sandbox("here")).state == "idle_stopped"
        assert "is stopped" in await refused("here", port)
        with pytest.raises(NotFound):
            await client.get_sandbox_stats("here")  # it was not started
    assert world.forwards("never") == []


async def test_what_breaks_the_protocol_is_an_invalid_argument(client: Client) -> None:
    async def answered(*requests: pb.ForwardPortRequest) -> None:
        call = client._open(client._method(pb.ForwardPortRequest))
        with client._translated():
            for request in requests:
                await call.write(request)
            await call.done_writing()
            async for _ in call:
                pass

    await client.create_sandbox("broken")
    data, end = pb.ForwardPortRequest(data=b"x"), pb.ForwardPortRequest(end=True)
    async with listening(echo) as port:
        where = pb.ForwardPortRequest(forward=pb.ForwardPort(thread="broken", port=port))
        await answered(where, data, end)
        for requests, said in (
            ((), "must be `forward`"),
            ((data,), "must be `forward`"),
            ((pb.ForwardPortRequest(forward=pb.ForwardPort(thread="broken")),), "port"),
            ((pb.ForwardPortRequest(forward=pb.ForwardPort(thread="broken", port=65_536)),), "port"),
            ((where, where), "only the first"),
        ):
            with pytest.raises(InvalidArgument, match=said):
                await answered(*requests)
        with pytest.raises(Cancelled, match="without `end`"):
            await answered(where, data)
        with pytest.raises(TooLarge, match="262,144 bytes"):
            await answered(where, pb.ForwardPortRequest(data=b"x" * (256 * 1024 + 1)), end)


@pytest.mark.parametrize("quota, size", [("tool_calls_per_minute: 5", 1), ("bytes_per_day: 2000", 1000)])
async def test_connections_and_their_bytes_count_in_the_quotas(world: World, quota: str, size: int) -> None:
    key = world.few_keys[quota]
    async with Client(world.gateway.address, key, retry=None) as client, listening(echo) as port:
        await client.create_sandbox(quota)

        async def moved() -> None:
            async with client.forward_port(quota, port) as connection:
                await connection.write(b"x" * size)
                await connection.write_eof()
                assert len(await read_all(connection)) == size

        await moved()
        with pytest.raises(QuotaExceeded, match=quota.partition(":")[0]):
            for _ in range(12):  # the minute may end in the midst
                await moved()
        assert {outcome for outcome, _, _ in world.forwards(quota)} == {"completed"}


async def test_a_sandbox_in_use_by_a_connection_is_not_stopped_and_one_that_dies_ends_it(tmp_path: Path) -> None:
    home = await asyncio.to_thread(memory_home, tmp_path)
    with served(home, ENV) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client, listening(echo) as port:
            await client.create_sandbox("t")
            async with client.forward_port("t", port) as half, client.forward_port("t", port) as connection:
                with pytest.raises(SandboxBusy):
                    await client.stop_sandbox("t")
                await connection.write(b"x")
                assert await connection.read() == b"x"
                for daemon in daemons_of(gateway.process.pid):
                    os.kill(daemon, signal.SIGKILL)
                for one in (connection, half):
                    with pytest.raises(Unavailable, match="died"):
                        await one.read()
            await client.create_sandbox("t")
            async with client.forward_port("t", port) as connection:
                await connection.write_eof()
                assert await connection.read() == b""
    found = home.rows("SELECT outcome FROM audit_records WHERE kind = 'forward' ORDER BY sequence")
    assert [outcome for (outcome,) in found] == ["failed", "failed", "completed"]


def daemons_of(gateway: int) -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == gateway and b"sandbox" in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
    assert found
    return found


async def test_a_gateway_that_stops_ends_connections_at_once_and_records_them(tmp_path: Path) -> None:
    home = await asyncio.to_thread(memory_home, tmp_path)
    home.configure(drain_s=50)

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        await reader.read()

    with served(home, ENV) as gateway:
        async with (
            Client(gateway.address, home.key, retry=None) as client,
            listening(echo) as port,
            listening(end_first) as ending,
        ):
            await client.create_sandbox("t")
            async with client.forward_port("t", ending) as half, client.forward_port("t", port) as connection:
                assert await half.read() == b""
                await connection.write(b"x")
                assert await connection.read() == b"x"
                gateway.process.terminate()
                with pytest.raises(Unavailable, match="shutting down"):
                    await connection.read()
                # Well before the drain is over, with one direction of a connection still open.
                assert await asyncio.to_thread(gateway.process.wait, 30) == 0
                with pytest.raises(Unavailable, match="shutting down"):
                    await half.write(b"x")
    rows = home.rows("SELECT outcome, size_bytes FROM audit_records WHERE kind = 'forward'")
    assert sorted(rows) == [("failed", 0), ("failed", 2)]


@asynccontextmanager
async def forwarding(address: str, key: str, thread: str, port: int, *options: str) -> AsyncIterator[tuple[Any, str]]:
    """Run `airlock sandbox forward` and yield its process and what it says first."""
    command = [*AIRLOCK, "sandbox", "forward", str(port), "--thread", thread, *options]
    env = {**os.environ, "AIRLOCK_ADDRESS": address, "AIRLOCK_API_KEY": key}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 30) == 130


async def test_the_command_line_leads_a_local_port_to_a_web_server_in_the_sandbox(world: World, client: Client) -> None:
    page, port = os.urandom(3 * MIB), free_port()
    await client.write_file("web", "/workspace/page.bin", page)

    def fetched(address: str) -> bytes:
        with urllib.request.urlopen(f"http://{address}/page.bin", timeout=30) as answer:
            return bytes(answer.read())

    async with forwarding(world.gateway.address, world.home.key, "web", port, "--json") as (process, said):
        address = json.loads(said)["listening"]
        # Nothing listens yet: the connection is closed, and the command goes on.
        with pytest.raises(OSError, match=r"."):
            await asyncio.to_thread(fetched, address)
        assert f"nothing listens on port {port}".encode() in await process.stderr.readline()
        argv = ["python3", "-u", "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        server = await client.start_process(argv, thread="web")
        async for piece in client.process_output("web", server.id, follow=True):
            if b"Serving" in piece.data:
                break
        assert await asyncio.gather(*(asyncio.to_thread(fetched, address) for _ in range(4))) == [page] * 4
        assert sum(sizes["bytes_down"] > len(page) for _, _, sizes in world.recorded("web", 4)) == 4
        await client.remove_process("web", server.id)


async def test_the_command_line_passes_ends_and_resets_on(world: World, client: Client) -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer_at_the_end(reader, writer)
        finally:
            ended.set()

    await client.create_sandbox("ends")
    to = (world.gateway.address, world.home.key)
    async with listening(answer) as port, forwarding(*to, "ends", port, "--listen", "localhost:0") as (_, said):
        assert f"port {port} in the sandbox of thread ends" in said
        address = said.split()[0]
        reader, writer = await asyncio.open_connection("localhost", int(address.rpartition(":")[2]))
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"you said hello"
        writer.close()
        ended.clear()
        _, writer = await asyncio.open_connection("localhost", int(address.rpartition(":")[2]))
        writer.write(b"gone")
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_local_address_that_cannot_be_used_ends_the_command(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = f"127.0.0.1:{taken.getsockname()[1]}"
        for listen, said in ((used, "in use"), ("here", "HOST:PORT")):
            done = await asyncio.to_thread(
                subprocess.run,
                [*AIRLOCK, "sandbox", "forward", "1", "--listen", listen, "--address", world.gateway.address],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert (done.returncode, said in done.stderr) == (2, True), done.stderr
