"""A gateway's engine behind the proxy: all that it does goes through, and what would make it root does not."""

from __future__ import annotations

import io
import secrets
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from sandbox.engines.docker.container_config import carrier_config, volume_of
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.sandbox import owner_by_name
from tests.integration.sandbox.live_engine import IMAGE, LIMITS, RUNTIME_IMAGE, instance_id, removed, run, spec, text
from tests.integration.sandbox.test_workspaces import giving, tree_of


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    socket = tmp_path / "proxy" / "docker.sock"
    command = [sys.executable, "-m", "gateway.cli", "engine-proxy", "--listen", str(socket)]
    started = subprocess.Popen(
        [*command, "--channel-dir", str(tmp_path / "channels")], stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    while "forwarding" not in (line := started.stderr.readline()):
        assert line, "the proxy did not come up"
    yield f"unix://{socket}"
    started.terminate()
    assert started.wait(60) == 0
    started.stderr.close()


@pytest.fixture
async def engine(tmp_path: Path, proxy: str) -> AsyncIterator[DockerEngine]:
    instance = instance_id()
    made = DockerEngine(
        instance=instance,
        channel_root=tmp_path / "channels",
        runtime_image=RUNTIME_IMAGE,
        requests=DockerRequests(proxy),
    )
    yield made
    await removed(made, instance)


async def test_a_sandbox_s_whole_life_goes_through_the_proxy(engine: DockerEngine) -> None:
    await engine.prepare()
    await engine.describe()
    sandbox = await engine.create(spec("proxied"))
    assert text(await run(sandbox.shell, "echo here > /workspace/a; cat /workspace/a")) == "here\n"
    (live,) = await engine.listed("tenant-a")
    assert live.id == sandbox.id
    used = await engine.usage(live)
    assert used is not None
    assert (used.memory_limit_bytes, used.pids_limit) == (LIMITS.memory_bytes, LIMITS.pids)
    assert await engine.stop_idle(sandbox.id)
    resumed = await engine.create(spec("proxied"))
    assert resumed.id == sandbox.id
    saved = await engine.save_workspace(spec("proxied"), tree_of)
    assert saved is not None
    assert [entry.path for entry in saved] == ["", "a"]
    await engine.replace_workspace(spec("proxied"), giving(saved))
    assert not resumed.borrow()
    await engine.remove(resumed.id)
    again = await engine.create(spec("proxied"))
    assert (await again.files.stat("/workspace/a")).size_bytes == 5
    assert await engine.reconcile() == []
    await engine.remove(again.id)
    assert await engine.remove_all_of("tenant-a") == 1
    assert await engine.left_of("tenant-a") == {"volumes": 0, "containers": 0}


async def test_what_the_pool_asks_for_goes_through_the_proxy(engine: DockerEngine) -> None:
    pooled = await engine.pool.make_pooled(PoolKind.of(spec()))
    other = await engine.pool.make_pooled(PoolKind.of(spec()))
    sandbox = await engine.pool.claim(pooled, spec("pooled"))
    assert sandbox is not None
    assert text(await run(sandbox.shell, "echo here > a; cat a")) == "here\n"
    assert [one.id for one in await engine.listed("tenant-a")] == [sandbox.id]
    assert await engine.reconcile() == []
    assert await engine.save_workspace(spec("pooled"), tree_of)
    assert await engine.remove_all_of("tenant-a") == 1
    await engine.pool.discard(other)


def test_what_would_make_a_gateway_root_is_refused_and_others_containers_are_not_its_own(proxy: str) -> None:
    client = docker.APIClient(base_url=proxy, version="auto")
    direct = docker.APIClient(version="auto")
    labels = {"airlock.kind": "test", "airlock.instance": "i"}
    other = direct.create_container(IMAGE, "true", labels={"airlock.kind": "test"})["Id"]
    try:
        for host in ({"Binds": ["/:/host"]}, {"Privileged": True, "NetworkMode": "none"}):
            body = {"Image": IMAGE, "Labels": labels, "HostConfig": host}
            with pytest.raises(APIError, match="403"):
                client.create_container_from_config(body, "airlock-root")
        for ask in (client.start, client.inspect_container, client.remove_container):
            with pytest.raises(APIError, match="is not a gateway's"):
                ask(other)
        with pytest.raises(APIError, match="no request that a gateway makes"):
            client.create_network("airlock-x")
    finally:
        direct.remove_container(other, force=True)
        client.close()
        direct.close()


def test_a_workspace_s_files_go_through_as_a_stream_and_what_is_never_started_is_not(proxy: str) -> None:
    client = docker.APIClient(base_url=proxy, version="auto")
    asked = spec("carried", tenant=instance_id())
    carrier = client.create_container_from_config(carrier_config(IMAGE, asked, "i", quota=False))["Id"]
    try:
        content = secrets.token_bytes(8 * 1024 * 1024)
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            entry = tarfile.TarInfo("file")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        whole = tar.getvalue()
        assert client.put_archive(
            carrier, "/workspace", (whole[at : at + 65_536] for at in range(0, len(whole), 65_536))
        )
        pieces, _ = client.get_archive(carrier, "/workspace/file")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            file = archive.extractfile("file")
            assert file is not None
            assert file.read() == content
        with pytest.raises(APIError, match="never started"):
            client.start(carrier)
    finally:
        client.remove_container(carrier, force=True)
        client.remove_volume(volume_of("i", owner_by_name(asked.tenant, asked.thread)[1]))
        client.close()


def test_no_file_of_the_host_is_reached_through_a_container_s_files(proxy: str, tmp_path: Path) -> None:
    """Engine 20.10 mounts the container's mounts on the host for an archive, and follows what is a link by then."""
    client = docker.APIClient(base_url=proxy, version="auto")
    direct = docker.APIClient(version="auto")
    channel, secret = tmp_path / "channels" / "abc", tmp_path / "secret"
    channel.mkdir(parents=True)
    secret.mkdir()
    (secret / "shadow").write_text("root")
    labels = {"airlock.kind": "carrier", "airlock.instance": instance_id()}
    mounts = [{"Type": "bind", "Source": str(channel), "Target": "/run/airlock"}]
    host = {"NetworkMode": "none", "Mounts": mounts}
    body = {"Image": IMAGE, "Entrypoint": ["/never-started"], "Labels": labels, "HostConfig": host}
    with pytest.raises(APIError, match="what is never started has one volume"):
        client.create_container_from_config(body, f"airlock-{instance_id()}")
    # One that an earlier release let through.
    made = direct.create_container_from_config(body, f"airlock-{instance_id()}")["Id"]
    try:
        channel.rmdir()
        channel.symlink_to(secret)
        with pytest.raises(APIError, match="403"):
            client.get_archive(made, "/run/airlock/shadow")
        with pytest.raises(APIError, match="403"):
            client.put_archive(made, "/run/airlock", b"")
    finally:
        direct.remove_container(made, force=True)
        client.close()
        direct.close()
