"""An engine at ssh://, through a real sshd on loopback with a key of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.engine_address import RelaySite
from sandbox.errors import EngineUnavailable
from tests.integration.sandbox import live_engine
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id, run, text
from tests.integration.sandbox.made_images import busybox, image
from tests.remote_engine import RemoteEngine, remote_engine

_SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(
    _SSHD is None or os.geteuid() != 0, reason="apt-get install openssh-server, and be root"
)


class SshServer:
    """sshd for one key. `ssh` finds that by a file that the tests put before its own, by PATH."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
        known = (directory / "host.pub").read_text().split()[:2]
        (directory / "known").write_text(f"[127.0.0.1]:{self.port} {' '.join(known)}\n")
        (directory / "user.pub").rename(directory / "authorized")
        programs = directory / "programs"
        programs.mkdir()
        options = f"-F none -i {directory / 'user'} -o UserKnownHostsFile={directory / 'known'}"
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
        (programs / "ssh").chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"
        self._command = [
            *(str(_SSHD), "-D", "-e", "-f", "none", "-p", str(self.port), "-h", str(directory / "host")),
            *(word for option in self._options(directory) for word in ("-o", option)),
        ]

    def _options(self, directory: Path) -> list[str]:
        return [
            "ListenAddress=127.0.0.1",
            f"AuthorizedKeysFile={directory / 'authorized'}",
            "PasswordAuthentication=no",
            "StrictModes=no",
            f"PidFile={directory / 'pid'}",
        ]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own with what it starts for a login."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        started = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return started
            time.sleep(0.02)
        raise AssertionError("sshd did not start")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshServer:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    made = SshServer(keys)
    monkeypatch.setenv("PATH", made.path)
    return made


@pytest.fixture(scope="module")
def machine() -> Iterator[tuple[RemoteEngine, str]]:
    with image(busybox()) as name, remote_engine(name, RUNTIME_IMAGE) as made:
        yield made, name


async def test_an_engine_is_used_over_ssh_and_again_after_the_login_ended(
    machine: tuple[RemoteEngine, str], server: SshServer, tmp_path: Path
) -> None:
    own, name = machine
    user = getpass.getuser()
    relays = RelaySite(own.host, own.host, tmp_path / "authority.pem")
    address = f"ssh://{user}@127.0.0.1:{server.port}{own.socket}"
    requests = DockerRequests(address, relays=relays)
    engine = DockerEngine(
        instance=instance_id(), channel_root=tmp_path / "channels", runtime_image=RUNTIME_IMAGE, requests=requests
    )
    with pytest.raises(EngineUnavailable, match=r"ssh: .*Connection refused"):
        await engine.ping()
    sshd = server.start()
    try:
        spec = dataclasses.replace(live_engine.spec(), image=name)
        sandbox = await engine.create(spec)
        assert text(await run(sandbox.shell, "echo here")) == "here\n"
        tunnel = requests._tunnel
        assert tunnel is not None
        assert tunnel._ssh is not None
        tunnel._ssh.kill()
        await asyncio.to_thread(tunnel._ssh.wait)
        await engine.ping()
        assert text(await run(sandbox.shell, "echo still")) == "still\n", "it has a way of its own"
        await engine.remove(sandbox.id)
        await engine.remove_workspaces()
    finally:
        await engine.close()
        sshd.terminate()
        sshd.wait()
    assert not tunnel.socket.parent.exists()
