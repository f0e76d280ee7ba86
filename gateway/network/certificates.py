"""A certificate authority of one tenant, so that the gateway can open TLS connections of its sandboxes to chosen hosts.

The key follows from a secret that all gateways of a database share, so a sandbox trusts each of them, whichever wrote
the certificate into it. It is not constrained to names: which hosts are opened may change while sandboxes run, and only
gateways can sign.
"""

import hashlib
import hmac
import ipaddress
import os
import ssl
from collections import OrderedDict
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sandbox.client.certificates import Now, authority_certificate, builder, in_pem, key_usage, utc_now

# Clocks of sandboxes may be behind.
_BACKDATED = timedelta(days=1)
_AUTHORITY_VALID = timedelta(days=730)
_AUTHORITY_RENEWED = timedelta(days=180)
_LEAF_VALID = timedelta(days=7)
_LEAF_RENEWED = timedelta(days=1)
_LIMIT_CONTEXTS = 128
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


class CertificateAuthority:
    """Signs a certificate for each host; the TLS contexts are kept, the last used ones of `limit`.

    Authorities of the same secret and tenant have the same key and name: what trusts one trusts the other.
    """

    def __init__(self, secret: bytes, tenant: str, *, limit: int = _LIMIT_CONTEXTS, now: Now = utc_now) -> None:
        self._derived = hmac.new(secret, f"network authority of {tenant}".encode(), "sha512").digest()
        self._key = ec.derive_private_key(int.from_bytes(self._derived) % (_ORDER - 1) + 1, ec.SECP256R1())
        self._tenant = tenant
        self._limit = limit
        self._now = now
        self._certificate = _authority(tenant, self._key, now())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[tuple[str, str], tuple[ssl.SSLContext, datetime]] = OrderedDict()

    @property
    def certificate(self) -> x509.Certificate:
        """The authority's certificate. One that expires soon is replaced by another for the same key."""
        if self._certificate.not_valid_after_utc - self._now() < _AUTHORITY_RENEWED:
            self._certificate = _authority(self._tenant, self._key, self._now())
        return self._certificate

    @property
    def ca_pem(self) -> str:
        """The certificate to trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    @property
    def derived_key(self) -> bytes:
        """A secret that follows from the authority's, for other uses than signing."""
        return hashlib.sha256(b"airlock placeholders" + self._derived).digest()

    def context(self, host: str, protocol: str = "http/1.1") -> ssl.SSLContext:
        """Return a server's context for a canonical host: TLS 1.2 or 1.3, one protocol, by ALPN."""
        kept = self._contexts.pop((host, protocol), None)
        if kept is None or kept[1] - self._now() < _LEAF_RENEWED:
            kept = self._made(host, protocol)
        self._contexts[host, protocol] = kept
        while len(self._contexts) > self._limit:
            self._contexts.popitem(last=False)
        return kept[0]

    def _made(self, host: str, protocol: str) -> tuple[ssl.SSLContext, datetime]:
        leaf = self._leaf(host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        # ssl reads certificates from files only; this one is never on a disk.
        with open(os.memfd_create("leaf", os.MFD_CLOEXEC), "wb") as memory:  # noqa: PTH123 - a descriptor
            memory.write(in_pem(self._leaf_key, leaf))
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
        return context, leaf.not_valid_after_utc

    def _leaf(self, host: str) -> x509.Certificate:
        ends = min(self._now() + _LEAF_VALID, self.certificate.not_valid_after_utc)
        return (
            builder(x509.Name([]), self._leaf_key, self._now() - _BACKDATED, ends)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(sign=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _authority(tenant: str, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    return authority_certificate(f"Airlock {tenant}", key, now - _BACKDATED, now + _AUTHORITY_VALID)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
