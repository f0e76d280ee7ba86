"""TLS and clients' certificates, over real sockets."""

from __future__ import annotations

import contextlib
import os
import ssl
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from airlock.connection import Tls
from gateway.config.config import Config
from gateway.config.identity_settings import TlsSettings
from gateway.credentials.keys import make_key
from gateway.errors import Misconfigured, ScopeMissing, Unauthenticated, Unavailable
from gateway.identity.certificate_authenticator import CertificateAuthenticator
from gateway.identity.tls import server_context
from gateway.storage.key_store import KeyStore
from tests.unit.gateway.who_server import who_server

SPIFFE = "spiffe://example/agents"


class Authority:
    """A certificate authority with its files in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.ca = trustme.CA()
        self.directory = directory
        self.path = directory / f"{name}.pem"
        self.ca.cert_pem.write_to_path(str(self.path))

    def issue(self, name: str, *sans: str, **more: Any) -> tuple[Path, Path]:
        """Return the files of a certificate and its key."""
        made = self.ca.issue_cert(*sans, **more)
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return certificate, key

    def tls(self, name: str, *sans: str, **more: Any) -> Tls:
        """Return what a client with such a certificate has."""
        return Tls(self.path, *self.issue(name, *sans, **more))


def _mutual(authority: Authority, *certificates: dict[str, Any]) -> dict[str, Any]:
    certificate, key = authority.issue("gateway", "localhost")
    return {
        "tls": {"certificate": str(certificate), "key": str(key), "client_ca": str(authority.path)},
        "identity": {"certificates": list(certificates)},
    }


async def test_a_key_travels_over_tls_and_a_client_that_trusts_another_authority_is_not_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key_file = authority.issue("gateway", "localhost")
    async with who_server(tmp_path, tls={"certificate": str(certificate), "key": str(key_file)}) as server:
        key = make_key()
        await KeyStore(server.database).add("acme", key)
        async with server.asking(key.secret, Tls(authority.path)) as asking:
            assert (await asking.once()).startswith("acme alk_")
        async with server.asking(key.secret, Tls(Authority(tmp_path, "other").path)) as asking:
            with pytest.raises(Unavailable):
                await asking.once()
        async with server.asking(key.secret) as asking:
            with pytest.raises(Unavailable):
                await asking.once()


async def test_a_name_in_a_clients_certificate_is_a_tenant(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sections = _mutual(
        authority, {"san": SPIFFE, "tenant": "acme"}, {"san": "b.example", "tenant": "other", "scopes": ["files"]}
    )
    async with who_server(tmp_path, **sections) as server:
        async with server.asking(tls=_uri(authority, "a", SPIFFE)) as asking:
            assert await asking.once() == f"acme certificate:{SPIFFE} run,tool,files"
        async with server.asking(tls=authority.tls("b", "b.example", "elsewhere.example")) as asking:
            with pytest.raises(ScopeMissing, match="has the scopes files"):
                await asking.once()
        key = make_key()
        await KeyStore(server.database).add("other", key)
        async with server.asking(key.secret, authority.tls("b", "b.example")) as asking:
            assert (await asking.once()).startswith("other alk_")  # the key goes before the certificate


async def test_a_certificate_without_an_identity_authenticates_no_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sections = _mutual(
        authority,
        {"san": SPIFFE, "tenant": "acme"},
        {"san": "a.example", "tenant": "acme"},
        {"san": "b.example", "tenant": "other"},
    )
    async with who_server(tmp_path, **sections) as server:
        for name, sans, said in (
            ("c", ("c.example",), "no tenant"),
            ("sub", ("x.a.example",), "no tenant"),
            ("wild", ("*.example",), "no tenant"),
            ("both", ("a.example", "b.example"), "more than one tenant"),
        ):
            async with server.asking(tls=authority.tls(name, *sans)) as asking:
                with pytest.raises(Unauthenticated, match=said):
                    await asking.once()
        # A common name says nothing, nor does a DNS name that reads like a URI's host.
        async with server.asking(tls=authority.tls("cn", "c.example", common_name="a.example")) as asking:
            with pytest.raises(Unauthenticated, match="no tenant"):
                await asking.once()
        async with server.asking("alk_guess", tls=authority.tls("a", "a.example")) as asking:
            with pytest.raises(Unauthenticated, match="not valid"):
                await asking.once()  # a bad key is not made good by a certificate


async def test_without_a_certificate_of_the_right_authority_there_is_no_connection(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with who_server(tmp_path, **_mutual(authority, {"san": "a.example", "tenant": "acme"})) as server:
        certificate, key = other.issue("alien", "a.example")
        for tls in (Tls(authority.path), Tls(authority.path, certificate, key)):
            async with server.asking(tls=tls) as asking:
                with pytest.raises(Unavailable):
                    await asking.once()
        expired = authority.tls("old", "a.example", not_after=datetime.now(UTC) - timedelta(days=1))
        async with server.asking(tls=expired) as asking:
            with pytest.raises(Unavailable):
                await asking.once()


async def test_a_certificate_that_expires_while_its_connection_lives_authenticates_no_one(tmp_path: Path) -> None:
    from types import SimpleNamespace

    authority = Authority(tmp_path)
    certificate, _ = authority.issue("a", "a.example", not_after=datetime.now(UTC) + timedelta(days=1))
    config = Config.model_validate(
        {"tenants": {"acme": {"policy": "p"}}, **_mutual(authority, {"san": "a.example", "tenant": "acme"})}
    )
    now = [datetime.now(UTC).timestamp()]

    async def named(name: str) -> Any:
        return name

    tenants: Any = SimpleNamespace(named=named)
    authenticate = CertificateAuthenticator(config.identity.certificates, tenants, lambda: now[0])
    context: Any = SimpleNamespace(auth_context=lambda: {"x509_pem_cert": [certificate.read_bytes()]})
    found: Any = await authenticate(context)
    assert found.tenant == "acme"
    now[0] += 2 * 86_400
    with pytest.raises(Unauthenticated, match="expired"):
        await authenticate(context)


async def test_a_renewed_certificate_is_served_without_a_restart_and_a_bad_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway", "localhost")
    async with who_server(tmp_path, tls={"certificate": str(certificate), "key": str(key)}) as server:
        port = int(server.address.rpartition(":")[2])

        def served() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port))

        first = served()
        fresh_certificate, fresh_key = authority.issue("fresh", "localhost")
        os.replace(fresh_certificate, certificate)  # the key comes later
        assert served() == first
        os.replace(fresh_key, key)
        second = served()
        assert second != first
        certificate.write_text("no certificate", encoding="ascii")
        assert served() == second
        certificate.unlink()
        assert served() == second


@pytest.mark.parametrize(
    "tls, said",
    [
        ({"client_certificates": "optional"}, "one gateway that"),
        ({"client_certificates": "required"}, "client_ca"),
    ],
)
def test_what_cannot_be_served_is_refused(tls: dict[str, Any], said: str) -> None:
    document = {"tenants": {"acme": {"policy": "p"}}, "tls": {"certificate": "c", "key": "k", **tls}}
    with pytest.raises(ValueError, match=said):
        Config.model_validate(document)


@pytest.mark.parametrize("broken", ["missing", "alien key", "no certificate", "no authority"])
async def test_files_that_do_not_fit_together_keep_the_gateway_from_starting(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway", "localhost")
    _, alien = authority.issue("alien", "localhost")
    tls = {"certificate": str(certificate), "key": str(alien if broken == "alien key" else key)}
    if broken == "missing":
        key.unlink()
    if broken == "no certificate":
        certificate.write_bytes(b"\0")
    if broken == "no authority":
        authority.path.write_bytes(b"none")
        tls["client_ca"] = str(authority.path)
    with pytest.raises(Misconfigured, match="tls: "):
        async with who_server(tmp_path, tls=tls):
            pass


def _uri(authority: Authority, name: str, uri: str) -> Tls:
    """Issue a certificate with a URI, which trustme does not make."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.path.read_bytes())
    issuer_key: Any = serialization.load_pem_private_key(authority.ca.private_key_pem.bytes(), None)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "agents")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    certificate, key_file = authority.directory / f"{name}.crt", authority.directory / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Tls(authority.path, certificate, key_file)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_the_trust_in_its_clients_authority(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority, successor = Authority(tmp_path), trustme.CA()
    certificate, key = authority.issue("gateway", "localhost")
    served = server_context(TlsSettings(certificate=certificate, key=key, client_ca=authority.path), lambda path: path)
    client = ssl.create_default_context(cadata=authority.ca.cert_pem.bytes().decode())
    client.maximum_version = version
    client.load_cert_chain(*authority.issue("client", "agent"))
    first = _connected(client, served, None)
    assert _connected(client, served, first.session).session_reused
    successor.cert_pem.write_to_path(str(authority.path))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        _connected(client, served, first.session)


def _connected(client: ssl.SSLContext, server: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLObject:
    """Connect both ends in memory, read one byte at each, and return the client's end."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname="localhost", session=session),
        server.wrap_bio(there, back, server_side=True),
    )
    waiting = [step for end in ends for step in (end.do_handshake, partial(end.write, b"x"), partial(end.read, 1))]
    steps = [waiting[:3], waiting[3:]]
    while any(steps):
        for mine in steps:
            with contextlib.suppress(ssl.SSLWantReadError):
                while mine:
                    mine[0]()
                    del mine[0]
    return ends[0]
