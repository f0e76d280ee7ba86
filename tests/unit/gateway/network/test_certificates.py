"""A tenant's authority: clients that trust it trust its servers, and only those."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from gateway.network.certificates import CertificateAuthority
from gateway.network.client_hello import read_client_hello
from gateway.network.tls_server import accept_tls

_NOW = datetime.now(UTC)


def _open(tenant: str = "acme", days: int = 0, secret: bytes = b"secret") -> CertificateAuthority:
    return CertificateAuthority(secret, tenant, now=lambda: _NOW + timedelta(days=days))


def _trusting(*pems: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="".join(pems))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@contextlib.asynccontextmanager
async def _opened(context: Callable[[str], ssl.SSLContext]) -> AsyncIterator[int]:
    """Serve an echo inside of TLS, whose hello is read first, as the gateway does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        while (hello := read_client_hello(first)) is None:
            first += await reader.read(10)
        try:
            reader, writer = await accept_tls(
                (reader, writer), first, context(hello.server_name or "127.0.0.1"), handshake_s=20
            )
        except OSError:
            return
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _ask(port: int, host: str, trusted: ssl.SSLContext, data: bytes = b"x" * 300_000) -> str | None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname=host)

    async def send() -> None:
        writer.write(data)
        await writer.drain()

    _, got = await asyncio.gather(send(), reader.readexactly(len(data)))
    assert got == data
    protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return str(protocol)


@pytest.mark.parametrize("host", ["good.example", "xn--bcher-kva.example", "a" * 63 + ".example.com", "127.0.0.1"])
async def test_a_client_that_trusts_the_authority_is_served(host: str) -> None:
    authority = _open()
    async with _opened(authority.context) as port:
        assert await _ask(port, host, _trusting(authority.ca_pem)) == "http/1.1"


async def test_no_other_tenants_client_and_no_other_host_is_served() -> None:
    authority, other, foreign = _open(), _open("other"), _open(secret=b"of another database")
    async with _opened(lambda _: authority.context("good.example")) as port:
        for host, pem in (
            ("good.example", other.ca_pem),
            ("good.example", foreign.ca_pem),
            ("evil.example", authority.ca_pem),
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await _ask(port, host, _trusting(pem))
        assert await _ask(port, "good.example", _trusting(authority.ca_pem)) == "http/1.1"


def test_openssl_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text(_open().ca_pem)
    subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", pem, pem], check=True, capture_output=True)


async def test_what_trusts_one_gateway_of_a_database_trusts_all() -> None:
    one, two = _open(), _open(days=-3)
    assert one.ca_pem != two.ca_pem
    assert "PRIVATE" not in one.ca_pem
    async with _opened(two.context) as port:
        assert await _ask(port, "good.example", _trusting(one.ca_pem)) == "http/1.1"
    assert one.derived_key == two.derived_key
    assert len({one.derived_key, _open("other").derived_key, _open(secret=b"another").derived_key}) == 3


def test_a_certificate_that_expires_is_replaced_by_one_for_the_same_key() -> None:
    days = 0
    authority = CertificateAuthority(b"secret", "acme", now=lambda: _NOW + timedelta(days=days))
    first = authority.ca_pem
    days = 540
    assert authority.ca_pem == first
    days = 560
    assert authority.ca_pem != first
    leaf = authority._leaf("good.example")
    for trusted in (authority.ca_pem, first):
        store = Store([x509.load_pem_x509_certificate(trusted.encode())])
        verifier = PolicyBuilder().store(store).time(_NOW + timedelta(days=560))
        verifier.build_server_verifier(x509.DNSName("good.example")).verify(leaf, [])


def test_contexts_are_kept_renewed_and_bounded() -> None:
    days = 0.0
    authority = CertificateAuthority(b"secret", "a", limit=2, now=lambda: _NOW + timedelta(days=days))
    first = authority.context("a.example")
    assert authority.context("a.example") is first
    days = 6.5
    assert authority.context("a.example") is not first
    kept = authority.context("a.example")
    authority.context("b.example")
    authority.context("a.example")
    authority.context("c.example")
    assert authority.context("a.example") is kept


async def test_a_client_that_does_not_finish_the_handshake_is_closed() -> None:
    context = _open().context("good.example")
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await accept_tls((reader, writer), await reader.read(3), context, handshake_s=0.3)
        except OSError as error:
            failed.set_result(error)

    for sent in (b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
        failed = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
            writer.write(sent)
            assert isinstance(await asyncio.wait_for(failed, 20), OSError)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 20)
            writer.close()
