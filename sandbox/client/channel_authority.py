"""The certificate authority of a gateway instance, for its channels over TCP (sandbox/tls).

Its key stays in one file, which its owner alone can read; replicas of the instance share the file. It signs the
certificate of each sandbox's relay, and a short-lived one of this gateway, which is in memory only.
"""

import contextlib
import os
import ssl
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sandbox.client.certificates import Now, authority_certificate, builder, in_pem, key_usage, utc_now
from sandbox.tls.identity import client_context, gateway_name

# Clocks of other machines may be behind.
_BACKDATED = timedelta(hours=1)
_AUTHORITY_VALID = timedelta(days=3650)
_GATEWAY_VALID = timedelta(days=1)
_GATEWAY_RENEWED = timedelta(hours=6)
# Longer than a sandbox is meant to live: names, which are used once, end a certificate's use, not its date.
_SANDBOX_VALID = timedelta(days=365)
_SANDBOX_RENEWED = timedelta(days=30)


class ChannelAuthority:
    """Signs for one instance. Satisfies Contexts of tls_address by its method contexts()."""

    def __init__(self, instance: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, now: Now) -> None:
        self.instance = instance
        self._key = key
        self._certificate = certificate
        self._now = now
        self._contexts: dict[str, tuple[ssl.SSLContext, datetime]] = {}

    @classmethod
    def open(cls, path: Path, instance: str, *, now: Now = utc_now) -> "ChannelAuthority":
        """Read the authority in a PEM file, which is made, with its directory, if there is none.

        Raises OSError, and ValueError if the file has something else in it, others can read it, or `instance` cannot be
        part of a name.
        """
        gateway_name(instance)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while (data := _read(path)) is None:
            _write_new(path, cls.new(instance, now=now).pem)
        try:
            return cls.of(data, instance, now=now)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def new(cls, instance: str, *, now: Now = utc_now) -> "ChannelAuthority":
        """Return a new authority; raises ValueError if `instance` cannot be part of a name."""
        gateway_name(instance)
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(instance, key, _authority(instance, key, now()), now)

    @classmethod
    def of(cls, pem: bytes, instance: str, *, now: Now = utc_now) -> "ChannelAuthority":
        """Return the authority of its key and certificate; raises ValueError if it has expired, or is none."""
        gateway_name(instance)
        key, certificate = _loaded(pem)
        if certificate.not_valid_after_utc <= now():
            raise ValueError("the authority has expired; remove it, and the sandboxes that it signed for")
        return cls(instance, key, certificate, now)

    @property
    def pem(self) -> bytes:
        """Key and certificate, for of(). It lets its holder be a gateway of the instance."""
        return in_pem(self._key, self._certificate)

    @property
    def ca_pem(self) -> str:
        """The certificate that relays and gateways trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def contexts(self, protocol: str) -> ssl.SSLContext:
        """Return a gateway's context, the same one until its certificate expires soon."""
        kept = self._contexts.get(protocol)
        if kept is None or kept[1] - self._now() < _GATEWAY_RENEWED:
            identity, ends = self._signed(gateway_name(self.instance), _GATEWAY_VALID, ExtendedKeyUsageOID.CLIENT_AUTH)
            kept = self._contexts[protocol] = client_context(identity, self.ca_pem, protocol), ends
        return kept[0]

    def is_fresh(self, identity: bytes) -> bool:
        """Return whether an identity of this authority's is valid for a month or more."""
        try:
            certificate = x509.load_pem_x509_certificate(identity)
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return certificate.not_valid_after_utc - self._now() > _SANDBOX_RENEWED

    def sandbox_identity(self, name: str) -> bytes:
        """Return a new key and its certificate, in PEM, for a name of sandbox.tls.identity."""
        return self._signed(name, _SANDBOX_VALID, ExtendedKeyUsageOID.SERVER_AUTH)[0]

    def _signed(self, name: str, valid: timedelta, usage: x509.ObjectIdentifier) -> tuple[bytes, datetime]:
        key, now = ec.generate_private_key(ec.SECP256R1()), self._now()
        ends = min(now + valid, self._certificate.not_valid_after_utc)
        certificate = (
            builder(x509.Name([]), key, now - _BACKDATED, ends)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(sign=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return in_pem(key, certificate), ends


def _authority(instance: str, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    return authority_certificate(f"Airlock channels {instance}", key, now - _BACKDATED, now + _AUTHORITY_VALID)


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ValueError(f"{path}: others may read it; chmod 600 it, and make a new one if they did")
            return file.read()
    except FileNotFoundError:
        return None


def _loaded(data: bytes) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key(data, password=None)
        certificate = x509.load_pem_x509_certificate(data)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("not a private key and a certificate in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise ValueError("the certificate is not of the key")
    return key, certificate


def _write_new(path: Path, data: bytes) -> None:
    """Write a whole file that its owner alone can read; one that came in between stays."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(name)
    finally:
        Path(name).unlink(missing_ok=True)
