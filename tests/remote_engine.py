"""A Docker engine on another machine, as far as a gateway can tell: it has a network and files of its own.

Its directories are in a mount that only its own processes see, so that no path of the two is the same. A link of two
addresses leads to it. It listens there, in mutual TLS, with certificates in `certificates` as the docker command reads
them from DOCKER_CERT_PATH.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import trustme

from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.engine_address import RelaySite
from tests.chaos.own_engine import OwnEngine, skip_without

_PORT = 2376


class RemoteEngine(OwnEngine):
    """The engine at `host`, which its user reaches at `address` and from `near`."""

    def __init__(self, directory: Path) -> None:
        # Of the range for tests of networks (RFC 2544), so that hardly anything else has it.
        first = ipaddress.IPv4Address("198.18.0.0") + 4 * secrets.randbelow(2**15)
        self.near, self.host = str(first + 1), str(first + 2)
        self.address = f"tcp://{self.host}:{_PORT}"
        self.certificates = directory / "client"
        servers = directory / "server"
        _make_certificates(self.host, servers, self.certificates)
        super().__init__(
            directory,
            network=(
                f"--host={self.address}",
                "--tlsverify",
                *(f"--{option}={servers / file}" for option, file in _TLS.items()),
                "--bip=172.31.255.1/24",
            ),
        )
        self._link = f"al{secrets.token_hex(4)}"
        inside = ("nsenter", "--target", str(self.space()), "--net", "ip")
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(self.space()))
        _run("ip", "address", "add", f"{self.near}/30", "dev", self._link)
        _run("ip", "link", "set", self._link, "up")
        _run(*inside, "address", "add", f"{self.host}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run(*inside, "link", "set", device, "up")

    @property
    def environment(self) -> dict[str, str]:
        """What its users have in their environment, as for the docker command."""
        return {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(self.certificates)}

    def requests(self, authority: Path, *, host: str = "", listen: str = "") -> DockerRequests:
        """Return the way there, with the key of the channels in a file; the relays elsewhere than they are, if said."""
        relays = RelaySite(host or self.host, listen or self.host, authority)
        return DockerRequests(self.address, environment=self.environment, relays=relays)

    def hide(self, directory: Path) -> None:
        """Have its processes see an empty directory in the place of one that the gateway uses."""
        _run("nsenter", "--target", str(self.space()), "--mount", "mount", "-t", "tmpfs", "none", str(directory))

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Cut the link for as long as the block lasts."""
        _run("ip", "link", "set", self._link, "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", self._link, "up")


@contextlib.contextmanager
def remote_engine(*images: str) -> Iterator[RemoteEngine]:
    """Have an engine with these images until the block ends; skips where there can be none."""
    skip_without("dockerd", "unshare", "nsenter", "ip")
    # Not in pytest's directory: a socket's path must be short.
    engine = RemoteEngine(Path(tempfile.mkdtemp(prefix="remote-")))
    try:
        engine.start()
        engine.load(*images)
        yield engine
    finally:
        engine.close()


_TLS = {"tlscacert": "ca.pem", "tlscert": "cert.pem", "tlskey": "key.pem"}


def _make_certificates(host: str, *directories: Path) -> None:
    """Make what dockerd and its clients present to each other, in a directory each."""
    authority = trustme.CA()
    for directory in directories:
        directory.mkdir(mode=0o700)
        made = authority.issue_cert(host)
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        made.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        made.private_key_pem.write_to_path(str(directory / "key.pem"))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
