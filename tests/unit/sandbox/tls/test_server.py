"""Who gets through a relay: the gateway of its instance alone, and only to the sandbox that it means."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from sandbox.client.channel import Channel
from sandbox.client.remote_fs import RemoteFS
from sandbox.errors import DaemonLost
from sandbox.tls import server
from sandbox.tls.identity import CHANNEL_PROTOCOL, client_context, gateway_name, pooled_name, sandbox_name
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import always, fake_daemon
from tests.unit.sandbox.tls.relays import INSTANCE, NAME, Beside, Raw, authority, relayed, until

POOLED = pooled_name(INSTANCE, "s1")
DAY = timedelta(days=1)
DESCRIBED = always(entry=pb.Entry(type=pb.ENTRY_TYPE_FILE, size_bytes=3))


@pytest.fixture
def daemon(tmp_path: Path) -> AsyncIterator[Raw]:
    with closing(Raw(tmp_path)) as made:
        yield made


@pytest.fixture
async def beside(tmp_path: Path, daemon: Raw) -> AsyncIterator[Beside]:
    async with relayed(tmp_path) as made:
        yield made
    assert daemon.idle()  # whatever the test sent got no further than the relay


# --- what the gateway does not trust ---


@pytest.mark.parametrize(
    "name",
    [
        sandbox_name(INSTANCE, "s1", ("tenant-b", "thread-a"), 7),
        sandbox_name(INSTANCE, "s1", ("tenant-a", "thread-b"), 7),
        sandbox_name(INSTANCE, "s1", ("tenant-a", "thread-a"), 8),
        sandbox_name(INSTANCE, "s1", ("tenant-a", "thread-a"), 77),
        sandbox_name(INSTANCE, "s2", ("tenant-a", "thread-a"), 7),
        sandbox_name("i2", "s1", ("tenant-a", "thread-a"), 7),
        POOLED,
        gateway_name(INSTANCE),
    ],
)
async def test_a_relay_of_another_name_is_not_spoken_to(tmp_path: Path, name: str) -> None:
    with closing(Raw(tmp_path)):
        async with relayed(tmp_path, identity=authority().sandbox_identity(name)) as beside:
            with closing(beside.channel()) as channel, pytest.raises(DaemonLost, match=f"is not that of {NAME}"):
                await channel.connect()


async def test_a_relay_of_another_authority_or_with_an_expired_certificate_is_not_spoken_to(tmp_path: Path) -> None:
    late = authority(age_days=400)
    for identity, gateway, why in (
        (authority("other").sandbox_identity(NAME), authority(), "unable to get local issuer certificate"),
        (late.sandbox_identity(NAME), late, "certificate has expired"),
    ):
        async with relayed(tmp_path, identity=identity) as beside:
            address = beside.addressed(contexts=gateway.contexts)
            with pytest.raises(DaemonLost, match=why):
                await address.open()


async def test_what_is_no_relay_is_not_spoken_to(tmp_path: Path) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04ping, and more of what is no TLS")
        await reader.read()
        writer.close()

    served = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with relayed(tmp_path) as beside, served:
        with pytest.raises(DaemonLost, match="not the relay of"):
            await beside.addressed(port=served.sockets[0].getsockname()[1]).open()


async def test_what_accepts_and_says_nothing_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.client.tls_address._CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with relayed(tmp_path) as beside:
            address = beside.addressed(port=silent.getsockname()[1])
            with closing(Channel(address)) as channel, pytest.raises(DaemonLost):
                await RemoteFS(channel).stat("/workspace/a")


# --- whom the relay does not serve ---


@pytest.mark.parametrize(
    "name, usage, why",
    [
        (NAME, ExtendedKeyUsageOID.SERVER_AUTH, "unsupported certificate"),
        (gateway_name(INSTANCE), ExtendedKeyUsageOID.SERVER_AUTH, "unsupported certificate"),
        (NAME, ExtendedKeyUsageOID.CLIENT_AUTH, "no daemon"),
        (gateway_name("i2"), ExtendedKeyUsageOID.CLIENT_AUTH, "no daemon"),
    ],
)
async def test_no_other_certificate_of_the_authority_is_a_gateways(
    beside: Beside, name: str, usage: object, why: str
) -> None:
    mine = authority()
    identity, _ = mine._signed(name, DAY, usage)  # type: ignore[arg-type]
    address = beside.addressed(contexts=lambda protocol: client_context(identity, mine.ca_pem, protocol))
    with pytest.raises((DaemonLost, ConnectionRefusedError), match=why):
        await address.open()


async def test_a_gateway_of_another_authority_or_with_an_expired_certificate_is_not_served(beside: Beside) -> None:
    for other, why in ((authority("other"), "unknown ca"), (authority(age_days=30), "certificate expired|unknown ca")):
        identity, _ = other._signed(gateway_name(INSTANCE), DAY, ExtendedKeyUsageOID.CLIENT_AUTH)
        context = client_context(identity, authority().ca_pem)
        address = beside.addressed(contexts={CHANNEL_PROTOCOL: context}.__getitem__)
        with pytest.raises(DaemonLost, match=f"does not accept this gateway .*({why})"):
            await address.open()


async def test_who_has_no_certificate_an_old_tls_or_no_protocol_is_not_served(beside: Beside) -> None:
    none, old = [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2)]
    for context in (none, old):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols([CHANNEL_PROTOCOL])
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    for context in (none, old, authority().contexts("something-else/1")):
        answer = b""
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*beside.target, ssl=context, server_hostname="x")
            writer.write(b"x")
            answer = await reader.read(1)
        assert answer == b""
        await until(lambda: not beside.relay._handshakes)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), b"\x16\x03\x01\xff\xff" + b"x" * 70_000])
async def test_who_speaks_no_tls_is_cut_off(beside: Beside, said: bytes) -> None:
    reader, writer = await asyncio.open_connection(*beside.target)
    with contextlib.suppress(OSError):
        writer.write(said)
        await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await until(lambda: not beside.relay._handshakes)


async def test_a_handshake_that_does_not_end_is_ended(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection(*beside.target)
    writer.write(b"\x16\x03\x01")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_many_who_never_finish_a_handshake_do_not_keep_the_gateway_out(tmp_path: Path) -> None:
    async with relayed(tmp_path) as beside, fake_daemon(tmp_path, DESCRIBED):
        silent = [socket.create_connection(beside.target) for _ in range(3 * server.HANDSHAKES_LIMIT)]
        try:
            started = time.monotonic()
            with closing(beside.channel()) as channel:
                assert (await RemoteFS(channel).stat("/workspace/a")).size_bytes == 3
            assert time.monotonic() - started < server.HANDSHAKE_TIMEOUT_S
            assert len(beside.relay._handshakes) <= server.HANDSHAKES_LIMIT
        finally:
            for connection in silent:
                connection.close()


async def test_a_gateway_that_opens_more_than_the_limit_is_refused_and_its_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_LIMIT", 2)
    async with relayed(tmp_path) as beside:
        with closing(Raw(tmp_path)) as daemon:
            held = [await beside.address.open() for _ in range(2)]
            with pytest.raises((ConnectionResetError, ConnectionRefusedError)):
                await beside.address.open()
            far = await daemon.accept()
            held[0].send(b"x")
            assert await asyncio.get_running_loop().sock_recv(far, 1) == b"x"
            for connection in (*held, far):
                connection.close()


# --- a pooled sandbox ---


async def test_a_pooled_sandbox_is_claimed_once_and_has_its_new_name_alone_from_then_on(tmp_path: Path) -> None:
    mine = authority()
    async with relayed(tmp_path, pooled="s1", name=POOLED) as beside, fake_daemon(tmp_path, DESCRIBED):
        with closing(beside.channel()) as before, closing(Channel(beside.addressed(name=NAME))) as after:
            assert (await RemoteFS(before).stat("/workspace/a")).size_bytes == 3
            await beside.address.claim("s1", mine.sandbox_identity(NAME))
            # What was connected to the pooled sandbox is connected no more.
            await until(lambda: not beside.address._relays)
            with pytest.raises(DaemonLost, match="is not that of"):
                await RemoteFS(before).stat("/workspace/a")
            assert (await RemoteFS(after).stat("/workspace/a")).size_bytes == 3
            other = mine.sandbox_identity(sandbox_name(INSTANCE, "s1", ("tenant-b", "b"), 8))
            with pytest.raises(DaemonLost, match="claimed before"):
                await beside.addressed(name=NAME).claim("s1", other)
            assert (await RemoteFS(after).stat("/workspace/a")).size_bytes == 3


async def test_of_claims_at_the_same_time_one_succeeds(tmp_path: Path) -> None:
    names = [sandbox_name(INSTANCE, "s1", (f"tenant-{number}", "t"), 1) for number in range(8)]
    async with relayed(tmp_path, pooled="s1", name=POOLED) as beside, fake_daemon(tmp_path, DESCRIBED):
        claims = (beside.address.claim("s1", authority().sandbox_identity(name)) for name in names)
        results = await asyncio.gather(*claims, return_exceptions=True)
        assert [isinstance(result, (DaemonLost, OSError)) for result in results].count(False) == 1
        with closing(Channel(beside.addressed(name=names[results.index(None)]))) as channel:
            assert (await RemoteFS(channel).stat("/workspace/a")).size_bytes == 3


async def test_an_address_that_leads_to_another_pooled_sandbox_gives_that_one_no_owner(tmp_path: Path) -> None:
    # Pods that are made alike have one first identity, and an address may have been another Pod's.
    async with relayed(tmp_path, pooled="s2", name=POOLED) as beside, fake_daemon(tmp_path, DESCRIBED):
        with pytest.raises(DaemonLost, match="is another one"):
            await beside.address.claim("s1", authority().sandbox_identity(NAME))
        await beside.address.claim("s2", authority().sandbox_identity(NAME))


async def test_a_sandbox_that_has_an_owner_cannot_be_claimed(beside: Beside) -> None:
    with pytest.raises(DaemonLost, match="not pooled"):
        await beside.address.claim("s1", authority().sandbox_identity(NAME))


@pytest.mark.parametrize("identity", [b"-----BEGIN nonsense", b"x" * 1_000_000])
async def test_a_claim_with_something_else_than_an_identity_changes_nothing(tmp_path: Path, identity: bytes) -> None:
    async with relayed(tmp_path, pooled="s1", name=POOLED) as beside, fake_daemon(tmp_path, DESCRIBED):
        with pytest.raises((DaemonLost, OSError)):
            await beside.address.claim("s1", identity)
        await beside.address.claim("s1", authority().sandbox_identity(NAME))
