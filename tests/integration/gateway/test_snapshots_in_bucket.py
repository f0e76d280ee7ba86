"""Snapshots in an S3 bucket by real gateways: replicas without a shared disk, killed ones, a network that breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from gateway.client import Client
from gateway.errors import Unavailable
from tests.cutting_proxy import CuttingProxy
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served
from tests.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server

BIG = {"command": "head -c 60000000 /dev/urandom > big"}
SUM = {"command": "sha256sum big | cut -c1-64"}


class UntilCut(Random):
    """Has connections cut after a megabyte, in the midst of a piece, until so many were."""

    def __init__(self, proxy: CuttingProxy) -> None:
        super().__init__(1)
        self._proxy, self.wanted = proxy, 0

    def randint(self, a: int, b: int) -> int:
        return 1_000_000 if self._proxy.cuts < self.wanted else 1_000_000_000


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def in_bucket(url: str, prefix: str) -> dict[str, str]:
    return {"bucket": f"s3://{BUCKET}/{prefix}", "endpoint_url": url, "region": "us-east-1"}


def objects_of(s3: S3Server, prefix: str) -> list[str]:
    return [key for key in s3.names() if key.startswith(f"{prefix}/") and not key.endswith(("/database", "/used"))]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = make_home(tmp_path)
    home.configure(sandbox={"engine": "memory", "keep_workspaces": True})
    return home


async def test_replicas_without_a_shared_disk_restore_each_others_snapshots(
    s3: S3Server, tmp_path: Path, postgres_url: str
) -> None:
    homes = [make_home(tmp_path / name) for name in ("one", "two")]
    for home in homes:
        home.configure(
            database_url=postgres_url,
            sandbox={"channel_dir": str(tmp_path / "channels")},
            snapshots=in_bucket(s3.url, "replicas"),
        )
    key = homes[0].make_key("default")
    with served(homes[0], CREDENTIALS) as one, served(homes[1], CREDENTIALS) as two:
        async with Client(one.address, key) as first, Client(two.address, key) as second:
            await first.write_file("a", "/workspace/x", b"one")
            kept = await first.create_snapshot("a")
            await first.write_file("a", "/workspace/x", b"two")
            assert await second.restore_snapshot(kept.id, thread="b") == "b"
            assert await second.read_file("b", "/workspace/x") == b"one"
            await second.fork_thread("a", "c")
            assert await first.read_file("c", "/workspace/x") == b"two"
            await second.delete_snapshot(kept.id)
            for thread in "abc":
                await first.delete_thread(thread)
            assert objects_of(s3, "replicas") == []
    assert not (tmp_path / "one" / "state" / "snapshots").exists()
    assert containers_of(homes[0].instance) == []
    assert volumes_of(homes[0].instance) == []


async def test_a_gateway_that_is_killed_in_the_midst_of_an_upload_leaves_nothing_of_it(
    s3: S3Server, home: Home
) -> None:
    home.configure(snapshots=in_bucket(s3.url, "killed"))
    with served(home, CREDENTIALS) as gateway:
        async with Client(gateway.address, home.key, retry=None) as client:
            await client.call_tool("execute", BIG, thread="t")
            taking = asyncio.create_task(client.create_snapshot("t"))
            while not (blobs := [key for key in objects_of(s3, "killed") if "/blobs/" in key]):
                await asyncio.sleep(0.01)
            gateway.kill()
            with pytest.raises(Unavailable):
                await taking
    tenant = blobs[0].partition("/blobs/")[0]
    s3.client().create_multipart_upload(Bucket=BUCKET, Key=f"{tenant}/snapshots/x.manifest")  # type: ignore[attr-defined]
    assert not any(key.endswith(".manifest") for key in objects_of(s3, "killed"))
    home.write("UPDATE snapshot_locks SET expires_us = 0")  # as after a minute
    with served(home, CREDENTIALS) as gateway:
        async with Client(gateway.address, home.key) as client:
            while objects_of(s3, "killed") or s3.uploads():
                await asyncio.sleep(0.05)
            assert [one async for one in client.snapshots()] == []
            whole = await client.create_snapshot("t")
            await client.restore_snapshot(whole.id, thread="u")
            sums = [(await client.call_tool("execute", SUM, thread=one)).content for one in "tu"]
            assert sums[0] == sums[1]


async def test_connections_that_are_cut_in_the_midst_of_a_piece_cost_no_snapshot_and_no_restore(
    s3: S3Server, home: Home
) -> None:
    async with CuttingProxy(s3.url.removeprefix("http://"), 1) as proxy:
        limits = UntilCut(proxy)
        proxy._random = limits
        home.configure(snapshots=in_bucket(f"http://{proxy.address}", "cut"))
        serving = served(home, CREDENTIALS)
        gateway = await asyncio.to_thread(serving.__enter__)  # it asks the proxy, which runs in this loop
        try:
            async with Client(gateway.address, home.key) as client:
                await client.call_tool("execute", BIG, thread="t")
                limits.wanted = 1
                kept = await client.create_snapshot("t")
                cuts = proxy.cuts
                assert cuts >= 1
                limits.wanted = cuts + 1
                await client.restore_snapshot(kept.id, thread="u")
                assert proxy.cuts > cuts
                sums = [(await client.call_tool("execute", SUM, thread=one)).content for one in "tu"]
                assert sums[0] == sums[1]
        finally:
            await asyncio.to_thread(serving.__exit__, None, None, None)


async def test_a_bucket_that_does_not_answer_delays_no_start_and_is_used_once_it_does(s3: S3Server, home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        home.configure(snapshots=in_bucket(f"http://{address}", "silent"))
        with served(home, CREDENTIALS) as gateway:
            silent.close()
            async with Client(gateway.address, home.key, retry=None) as client:
                await client.write_file("t", "/workspace/x", b"one")
                with pytest.raises(Unavailable, match="bucket"):
                    await client.create_snapshot("t")
                # Connections of the start were taken by the silent one; later ones come to the server.
                proxy = await asyncio.start_server(
                    lambda reader, writer: _forward(reader, writer, s3.url),
                    "127.0.0.1",
                    int(address.rpartition(":")[2]),
                )
                async with proxy:
                    kept = await client.create_snapshot("t")
                    await client.restore_snapshot(kept.id, thread="u")
                    assert await client.read_file("u", "/workspace/x") == b"one"


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")
    there, to_there = await asyncio.open_connection(host, int(port))

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
        target.close()

    await asyncio.gather(pump(reader, to_there), pump(there, writer), return_exceptions=True)
