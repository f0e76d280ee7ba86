"""Snapshots in an S3 bucket by real gateways: replicas without a shared disk, killed ones, and a network that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.errors import Unavailable
from tests.cutting_proxy import cut
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served
from tests.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server

BIG = {"command": "head -c 60000000 /dev/urandom > big"}
SUM = {"command": "sha256sum big | cut -c1-64"}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def in_bucket(url: str, prefix: str) -> dict[str, str]:
    return {"bucket": f"s3://{BUCKET}/{prefix}", "endpoint_url": url, "region": "us-east-1"}


def objects_of(s3: S3Server, prefix: str) -> list[str]:
    return [key for key in s3.keys() if key.startswith(f"{prefix}/") and not key.endswith(("/database", "/used"))]


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


async def test_a_gateway_that_is_killed_in_the_midst_of_an_upload_leaves_nothing_of_it(s3: S3Server, home: Home) -> None:
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
    target = s3.url.removeprefix("http://")
    # Each connection carries one whole piece of 4 MiB, and not many.
    async with cut(target, 1, least_bytes=5_000_000, most_bytes=11_000_000) as proxy:
        home.configure(snapshots=in_bucket(f"http://{proxy.address}", "cut"))
        with served(home, CREDENTIALS) as gateway:
            async with Client(gateway.address, home.key) as client:
                await client.call_tool("execute", BIG, thread="t")
                kept = await client.create_snapshot("t")
                cuts = proxy.cuts
                await client.restore_snapshot(kept.id, thread="u")
                assert proxy.cuts > cuts > 0
                sums = [(await client.call_tool("execute", SUM, thread=one)).content for one in "tu"]
                assert sums[0] == sums[1]
