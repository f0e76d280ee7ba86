"""The Docker engine of a configuration: the way to it, and what it needs on another machine."""

import ipaddress
from pathlib import Path

from gateway.config.config import Config, SandboxSettings
from gateway.errors import Misconfigured
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.engine_address import RelaySite, engine_address, remote_host


def docker_requests(config: Config) -> DockerRequests:
    """Return a way to the engine of a configuration, which the caller closes. Raises Misconfigured."""
    # All processes of this gateway on the engine share this directory.
    relays = relay_site(config.sandbox, config.resolved_channel_dir() / "authority.pem")
    return DockerRequests(config.sandbox.engine_url, "sandbox.engine_url of the configuration", relays=relays)


def relay_site(settings: SandboxSettings, authority: Path) -> RelaySite | None:
    """Return where the sandboxes of an engine on another machine are reached; None for an engine on this one.

    `authority` is the file with the key of their channels. Raises Misconfigured if too little is configured.
    """
    host = settings.channel_host or remote_host(engine_address(settings.engine_url))
    if not host:
        return None
    listen = settings.channel_listen or _address(host)
    if listen is None:
        raise Misconfigured(
            f"sandbox.channel_listen is not set, and {host!r}, the host of the engine, is not an IP address: set it to "
            "the address of that machine on which it publishes the ports of sandboxes"
        )
    return RelaySite(host, str(listen), authority)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
