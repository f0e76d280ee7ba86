"""The real daemon in a real container, hardened as the gateway does it."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import google.protobuf
import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE
from tests.security.daemon.daemon_container import Client, Sandbox
from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[3]
PROTOBUF = Path(google.protobuf.__file__).parents[1]
IMAGES = ("airlock-sandbox", "airlock-dev-base")
GATEWAY_GID = 10003
# Beside the Python that runs the daemon here, which is the image's: Debian's own, or that of python:3.12-slim.
START_TOOL = ("/usr/bin/start_tool", "/usr/local/bin/start_tool")


@pytest.fixture(scope="session")
def image() -> str:
    engine = docker.from_env()
    for name in IMAGES:
        if engine.images.list(name=name):
            return name
    pytest.fail(f"none of the images {', '.join(IMAGES)} is there; `make setup` builds them")


@pytest.fixture(scope="module")
def options() -> tuple[str, ...]:
    """What the daemon is started with."""
    return ()


@pytest.fixture(scope="session")
def start_tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that waits for starts, out of the runtime image."""
    container = docker.from_env().containers.create(RUNTIME_IMAGE, ["/none"], labels={"airlock.kind": "devtest"})
    try:
        stream, _ = container.get_archive("/opt/airlock/bin/start_tool")
        directory = tmp_path_factory.mktemp("start_tool")
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            archive.extractall(directory, filter="tar")
    finally:
        container.remove(v=True)
    return directory / "start_tool"


@pytest.fixture(scope="module")
def running(
    image: str, options: tuple[str, ...], start_tool: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    channel = tmp_path_factory.mktemp("channel")
    channel.chmod(0o770)
    if os.getuid() != 0:
        pytest.fail("run these tests as root: the daemon's directory must belong to root")
    os.chown(channel, 0, GATEWAY_GID)
    container = docker.from_env().containers.run(
        image,
        ["python3", "-m", "sandbox.daemon", *options],
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
        volumes=[
            f"{channel}:/run/airlock:rw",
            f"{REPOSITORY / 'sandbox'}:/opt/dev/sandbox:ro",
            f"{PROTOBUF}:/opt/dev/google:ro",
            *(f"{start_tool}:{place}:ro" for place in START_TOOL),
        ],
    )
    sandbox = Sandbox(container, channel / "daemon.sock")
    try:
        if not eventually(sandbox.is_listening, 30):
            pytest.fail(f"the daemon did not come up: {container.logs().decode()}")
        yield sandbox
    finally:
        sandbox.close_clients()
        container.remove(force=True, v=True)


@pytest.fixture
def sandbox(running: Sandbox) -> Iterator[Sandbox]:
    probe = running.connect()
    # The daemon notices a closed connection a moment later; a test counts its own calls only.
    assert eventually(lambda: probe.call(health=wire.HealthRequest()).health.calls == 1, 20)
    running.close_clients()
    yield running
    running.close_clients()


@pytest.fixture
def client(sandbox: Sandbox) -> Client:
    return sandbox.connect()
