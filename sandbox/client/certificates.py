"""What the certificates of channels and those of opened TLS connections have in common.

The callers decide on names, times and what a certificate may be used for.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Now = Callable[[], datetime]
utc_now: Now = partial(datetime.now, UTC)


def authority_certificate(
    title: str, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.Certificate:
    """Return an authority's own certificate; of a long title the first 64 characters are its name."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title[:64])])
    return (
        builder(name, key, begins, ends)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(sign=False), critical=True)
        .sign(key, hashes.SHA256())
    )


def builder(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    """Return what every certificate starts from."""
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def key_usage(*, sign: bool) -> x509.KeyUsage:
    """Return the usage of a leaf's key, which signs handshakes, or the authority's, which signs certificates."""
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=not sign,
        crl_sign=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def in_pem(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bytes:
    """Return a key and its certificate."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
