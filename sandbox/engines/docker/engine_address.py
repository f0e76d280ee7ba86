"""Where a Docker engine is: whether that is another machine, and what the way there needs."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT = "unix:///var/run/docker.sock"


@dataclass(frozen=True)
class RelaySite:
    """Where the relays of an engine are.

    They are published on the address `listen` of the engine's host, which this gateway reaches as `host`. `authority`
    is the file with the key that signs for them (channel_authority.py), which all processes of the gateway share.
    """

    host: str
    listen: str
    authority: Path


def engine_address(configured: str | None) -> str:
    """Return the address that is configured, or else that of DOCKER_HOST, or of the default socket."""
    return configured or os.environ.get("DOCKER_HOST") or DEFAULT


def remote_host(address: str) -> str:
    """Return the host of an engine that is another machine's, as its address says; "" for this machine's."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    return host if parts.scheme in ("tcp", "https", "ssh") and not _is_this(host) else ""


def problem_of(address: str, environment: Mapping[str, str]) -> str:
    """Return why an engine must not be used at this address; "" if it may.

    Keys go that way, and who can use an engine is root on its machine.
    """
    if urlsplit(address).scheme not in ("tcp", "http", "https") or not remote_host(address.replace("http:", "tcp:")):
        return ""
    wanted = "DOCKER_CERT_PATH to a directory with ca.pem, cert.pem and key.pem"
    if not environment.get("DOCKER_TLS_VERIFY"):
        return f"over the network an engine is used in TLS alone: set DOCKER_TLS_VERIFY=1, and {wanted}"
    directory = Path(environment.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    missing = [name for name in ("ca.pem", "cert.pem", "key.pem") if not (directory / name).is_file()]
    return f"{directory} has no {' and no '.join(missing)}: set {wanted}" if missing else ""


def _is_this(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost")
