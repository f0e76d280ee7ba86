"""An engine on another machine: what tool code has of the way to the gateway, and who else gets to a sandbox."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.client.channel import Channel
from sandbox.errors import DaemonLost
from sandbox.sandbox import owner_of
from tests.integration.sandbox.live_engine import run, text
from tests.integration.sandbox.remote_site import Site, machine, site

__all__ = ["machine", "site"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

# What tool code has of the way to the gateway: files, processes, connections.
_LOOK = (
    "ls /keys /run/airlock 2>&1; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; cat /proc/net/tcp /proc/net/dev"
)


async def test_tool_code_sees_neither_key_nor_relay_nor_network_and_has_the_walls_of_any_sandbox(site: Site) -> None:
    engine = site.engine()
    sandbox = await engine.create(site.spec())
    seen = text(await run(sandbox.shell, _LOOK))
    assert "/keys: No such file" in seen
    assert "'/run/airlock': Permission denied" in seen
    assert "sandbox.tls" not in seen
    assert ":1DB0" not in seen, "the relay's port"
    assert "eth0" not in seen
    (relay,) = json.loads(site.machine.docker("inspect", site.relay(sandbox.id)))
    (own,) = json.loads(site.machine.docker("inspect", f"airlock-{site.instance}-{sandbox.id}"))
    shared = {mount["Name"] for mount in relay["Mounts"]} & {mount["Name"] for mount in own["Mounts"]}
    assert shared == {f"airlock-{site.instance}-channel-{sandbox.id}"}
    assert "PRIVATE KEY" not in json.dumps([relay, own])
    assert (relay["Config"]["User"], relay["HostConfig"]["CapDrop"]) == ("599999998:599999998", ["ALL"])
    assert not relay["HostConfig"]["Binds"]
    assert [mount["Type"] for mount in (*relay["Mounts"], *own["Mounts"])] == ["volume"] * 4


async def test_the_published_port_admits_the_gateway_of_this_sandbox_alone(site: Site, tmp_path: Path) -> None:
    engine = site.engine()
    mine, others = [await engine.create(site.spec(tenant=tenant)) for tenant in ("tenant-a", "tenant-b")]
    port, epoch = site.place(mine.id)
    with closing(Channel(site.address(mine, owner_of(mine.spec), epoch=epoch))) as channel:
        await channel.connect()
    refused = (
        site.address(mine, owner_of(others.spec), epoch=epoch),
        site.address(mine, owner_of(mine.spec), epoch=epoch - 1),
        site.address(others, owner_of(mine.spec), epoch=epoch),
        site.address(mine, owner_of(mine.spec), epoch=epoch, authority=tmp_path / "other.pem"),
    )
    for address in refused:
        with pytest.raises(DaemonLost, match="not trusted"):
            await address.open()
    assert await asyncio.to_thread(_answer, site.machine.host, port) == b""
    assert text(await run(mine.shell, "echo still")) == "still\n"


def _answer(host: str, port: int) -> bytes:
    """Return what comes of a connection in TLS without a certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["airlock-channel/1"])
    try:
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain) as made:
            made.settimeout(10)
            return made.recv(1)
    except OSError:
        return b""
