"""The proxy between a client and an engine that writes down what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.engine_proxy.proxy import EngineProxy, listening_socket
from sandbox.engines.docker.container_config import filler_config

OWN = {"Id": "a" * 64, "Path": "/opt/airlock/lib/ld.so", "Config": {"Labels": {"airlock.instance": "i"}}}
CONTAINERS: dict[str, Any] = {
    "airlock-own": OWN,
    "airlock-filler": OWN | {"Id": "b" * 64, "Path": "/never-started"},
    "airlock-carrier": OWN
    | {
        "Id": "d" * 64,
        "Path": "/never-started",
        "Mounts": [{"Type": "volume", "Name": "airlock-i-workspace-1", "Destination": "/workspace"}],
    },
    "postgres": {"Id": "c" * 64, "Path": "postgres", "Config": {"Labels": None}},
}


class Engine:
    """Answers inspections from CONTAINERS, and everything else with what it was sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            data = await reader.readuntil(b"\r\n\r\n")
            name = data.split(b" ")[1].decode().split("/")[-2]
            if data.startswith(b"GET") and name in CONTAINERS:
                answer = json.dumps(CONTAINERS[name]).encode()
                writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + answer)
            elif data.startswith(b"GET") and b"/containers/no" in data:
                writer.write(b"HTTP/1.0 404 Not Found\r\n\r\n{}")
            else:
                if b"chunked" in data:
                    data += await reader.readuntil(b"0\r\n\r\n")
                elif b"content-length" in data:
                    data += await reader.readexactly(int(data.split(b"content-length: ")[1].split(b"\r\n")[0]))
                self.sent.append(data)
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nyes")
        writer.close()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    made = Engine()
    servers = [
        await asyncio.start_unix_server(made.serve, tmp_path / "engine"),
        await EngineProxy(tmp_path / "engine", tmp_path).serve(listening_socket(tmp_path / "proxy")),
    ]
    yield made
    for server in servers:
        server.close()


async def ask(directory: Path, data: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(directory / "proxy")
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(-1), 30)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def request(line: str, body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{line} HTTP/1.1\r\nHost: x\r\n{length}X-Other: y\r\n\r\n".encode() + body


async def test_a_request_is_written_anew_and_its_answer_comes_back(engine: Engine, tmp_path: Path) -> None:
    assert await ask(tmp_path, request("GET /v1.41/info")) == (200, b"yes")
    assert engine.sent == [
        b"GET /v1.41/info HTTP/1.1\r\nhost: docker\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    ]


async def test_a_second_request_behind_the_first_is_not_sent(engine: Engine, tmp_path: Path) -> None:
    hidden = request("POST /v1.41/containers/postgres/exec")
    with contextlib.suppress(IndexError):  # it may be cut off in the midst of its answer
        await ask(tmp_path, request("GET /v1.41/info") + hidden)
    chunked = b"PUT /v1.41/containers/airlock-carrier/archive?path=/w HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _ = await ask(tmp_path, chunked + b"3\r\nabc\r\n0\r\n\r\n" + hidden)
    assert status == 200
    assert not any(b"exec" in data for data in engine.sent)
    assert engine.sent[-1].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


async def test_a_container_is_a_gateway_s_and_is_asked_for_by_its_id(engine: Engine, tmp_path: Path) -> None:
    assert (await ask(tmp_path, request("POST /v1.41/containers/airlock-own/start")))[0] == 200
    assert engine.sent[-1].startswith(f"POST /v1.41/containers/{'a' * 64}/start HTTP".encode())
    for line, status, said in [
        ("POST /v1.41/containers/postgres/start", 403, "not a gateway's"),
        ("DELETE /v1.41/containers/postgres?force=True", 403, "not a gateway's"),
        ("POST /v1.41/containers/airlock-filler/start", 403, "never started"),
        ("POST /v1.41/containers/no/start", 404, "No such container"),
        ("POST /v1.41/build", 403, "no request that a gateway makes"),
    ]:
        found, body = await ask(tmp_path, request(line))
        assert (found, said in body.decode()) == (status, True), (line, found, body)
    assert len(engine.sent) == 1


async def test_what_a_container_mounts_of_the_host_is_looked_at_each_time_it_starts(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = tmp_path / "sandbox-1"
    volume = {"Type": "volume", "Name": "airlock-i-workspace-1", "Source": "/var/lib/docker/volumes/x/_data"}

    def mounted(source: str) -> None:
        mounts = [volume, {"Type": "bind", "Source": source, "Destination": "/run/airlock"}]
        monkeypatch.setitem(CONTAINERS, "airlock-own", OWN | {"Mounts": mounts})

    start, stop = (request(f"POST /v1.41/containers/airlock-own/{verb}") for verb in ("start", "stop"))
    mounted(str(channel))
    channel.mkdir()
    assert (await ask(tmp_path, start))[0] == 200
    channel.rmdir()
    channel.symlink_to("/etc")
    status, body = await ask(tmp_path, start)
    assert (status, b"only a directory in" in body) == (403, True)
    assert (await ask(tmp_path, stop))[0] == 200
    mounted("/etc")
    assert (await ask(tmp_path, start))[0] == 403
    assert len(engine.sent) == 2


async def test_the_engine_reads_and_writes_files_of_what_it_never_starts_and_of_nothing_else(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an archive an engine mounts what the container has, on the host, and follows what has become a link."""
    channel = {"Type": "bind", "Source": str(tmp_path / "abc"), "Destination": "/run/airlock"}
    monkeypatch.setitem(CONTAINERS, "airlock-filler", CONTAINERS["airlock-filler"] | {"Mounts": [channel]})
    runtime = {"Type": "volume", "Name": "airlock-runtime-0123456789ab", "Destination": "/opt/airlock"}
    monkeypatch.setitem(CONTAINERS, "airlock-runtime", CONTAINERS["airlock-filler"] | {"Mounts": [runtime]})
    for name, statuses in [
        ("own", (403, 403)),
        ("filler", (403, 403)),
        ("runtime", (200, 403)),
        ("carrier", (200,) * 2),
    ]:
        for method, status in zip(("GET", "PUT"), statuses, strict=True):
            found, _ = await ask(tmp_path, request(f"{method} /v1.41/containers/airlock-{name}/archive?path=/w"))
            assert found == status, (method, name)
    assert [data.split(b"/")[3][:1] for data in engine.sent] == [b"b", b"d", b"d"]


async def test_volumes_are_filled_one_after_the_other_and_to_the_end(tmp_path: Path) -> None:
    """Two images that are copied into one volume at a time could lead the engine out of it, by links."""
    asked: asyncio.Queue[str] = asyncio.Queue()
    may_end = asyncio.Semaphore(0)

    async def slow(reader: StreamReader, writer: StreamWriter) -> None:
        asked.put_nowait((await reader.readuntil(b"\r\n\r\n")).split(b"name=")[1].split()[0].decode())
        await may_end.acquire()
        writer.write(b"HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n{}")
        writer.close()

    filler = json.dumps(filler_config("airlock-runtime", "airlock-runtime-0123456789ab", "i")).encode()
    async with await asyncio.start_unix_server(slow, tmp_path / "engine"):
        proxy = await EngineProxy(tmp_path / "engine", tmp_path).serve(listening_socket(tmp_path / "proxy"))
        async with proxy, asyncio.timeout(30):
            _, writer = await asyncio.open_unix_connection(tmp_path / "proxy")
            writer.write(request("POST /v1.41/containers/create?name=airlock-1", filler))
            assert await asked.get() == "airlock-1"
            writer.close()
            second = asyncio.create_task(ask(tmp_path, request("POST /v1.41/containers/create?name=airlock-2", filler)))
            carrier = filler.replace(b"airlock-runtime-0123456789ab", b"airlock-i-workspace-1").replace(
                b"/opt/airlock", b"/workspace"
            )
            kept = json.loads(carrier)
            kept["HostConfig"]["Mounts"][0]["VolumeOptions"] = {"NoCopy": True}
            other = asyncio.create_task(
                ask(tmp_path, request("POST /v1.41/containers/create?name=airlock-3", json.dumps(kept).encode()))
            )
            assert await asked.get() == "airlock-3"  # which fills nothing, and waits for no other
            assert asked.empty()
            may_end.release()
            may_end.release()
            assert await asked.get() == "airlock-2"
            may_end.release()
            assert [(await one)[0] for one in (second, other)] == [201, 201]


# Collecting in the midst of it all finds sockets that the loop was about to close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_request_whose_client_has_gone_is_served_to_its_end(tmp_path: Path) -> None:
    """asyncio lets go of a connection that is closed, and what serves it could be collected in the midst of it."""
    asked, answer = asyncio.Event(), asyncio.Event()
    kept: list[asyncio.Task[None]] = []

    async def slow(reader: StreamReader, writer: StreamWriter) -> None:
        kept.append(cast("asyncio.Task[None]", asyncio.current_task()))
        if b"/json" not in await reader.readuntil(b"\r\n\r\n"):
            asked.set()
            await answer.wait()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(CONTAINERS["airlock-carrier"]).encode())
        writer.close()
        await writer.wait_closed()

    def serving() -> int:
        return sum("EngineProxy._serve " in repr(task.get_coro()) for task in asyncio.all_tasks())

    async with await asyncio.start_unix_server(slow, tmp_path / "engine"):
        proxy = await EngineProxy(tmp_path / "engine", tmp_path).serve(listening_socket(tmp_path / "proxy"))
        async with proxy:
            _, writer = await asyncio.open_unix_connection(tmp_path / "proxy")
            writer.write(request("PUT /v1.41/containers/airlock-carrier/archive?path=/w", b"abc"))
            await asyncio.wait_for(asked.wait(), 30)
            writer.close()
            for _ in range(10):
                await asyncio.sleep(0)
                gc.collect()
            assert serving() == 1
            answer.set()
            async with asyncio.timeout(30):
                while serving():
                    await asyncio.sleep(0.01)
                await asyncio.gather(*kept)


async def test_what_is_created_is_what_was_looked_at(engine: Engine, tmp_path: Path) -> None:
    line = "POST /v1.41/containers/create?name=airlock-x"
    good = json.dumps(filler_config("airlock-runtime", "airlock-runtime-0123456789ab", "i"))
    assert (await ask(tmp_path, request(line, good.encode())))[0] == 200
    assert json.loads(engine.sent[-1].partition(b"\r\n\r\n")[2]) == json.loads(good)
    twice = good.removesuffix("}") + ', "HostConfig": {"Privileged": true}}'
    status, body = await ask(tmp_path, request(line, twice.encode()))
    assert (status, b"Privileged" in body) == (403, True)
    # Of a key that is there twice the engine would take one, and we another: it is sent once.
    twice = good.replace('"HostConfig"', '"HostConfig": {"Privileged": true}, "HostConfig"')
    assert (await ask(tmp_path, request(line, twice.encode())))[0] == 200
    assert b"Privileged" not in engine.sent[-1]
    assert (await ask(tmp_path, request(line, b"{")))[0] == 400
    chunked = f"{line} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode()
    assert (await ask(tmp_path, chunked))[0] == 400


async def test_an_unreachable_engine_is_reported_to_the_client(tmp_path: Path) -> None:
    server = await EngineProxy(tmp_path / "none", tmp_path).serve(listening_socket(tmp_path / "proxy"))
    status, body = await ask(tmp_path, request("GET /v1.41/info"))
    assert (status, b"does not answer" in body) == (502, True)
    server.close()
    assert (tmp_path / "proxy").stat().st_mode & 0o777 == 0o600


async def test_a_head_without_an_end_is_refused(engine: Engine, tmp_path: Path) -> None:
    assert (await ask(tmp_path, b"GET /info HTTP/1.1\r\n" + b"A: " + b"b" * 200_000))[0] == 400
    assert engine.sent == []
