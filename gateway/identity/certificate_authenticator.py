"""The authenticator of client certificates.

The configuration maps a subject alternative name (SAN) of a certificate to a tenant. The listener has verified the
chain and the possession of the key (gateway/identity/tls.py). Connections outlive handshakes, so each call checks the
certificate's validity period again.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256

from cryptography import x509

from gateway.config.identity_settings import CertificateSettings
from gateway.credentials.caller import Caller, shown_of
from gateway.errors import Unauthenticated
from gateway.identity.principal import Context, Principal
from gateway.tenancy.tenants import Tenants


class CertificateAuthenticator:
    """Authenticates the peer's certificate."""

    def __init__(
        self, settings: Sequence[CertificateSettings], tenants: Tenants, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = {one.san: one for one in settings}
        self._tenants = tenants
        self._clock = clock

    async def __call__(self, context: Context) -> Principal | None:
        """Return the caller, None if the peer has no certificate; Unauthenticated if no tenant matches it."""
        if not self._settings:
            return None
        found = list(context.auth_context().get("x509_pem_cert") or ())
        if not found:
            return None
        certificate, id_, names = _parsed(found[0])
        now = datetime.fromtimestamp(self._clock(), UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise Unauthenticated("the client certificate has expired or is not yet valid")
        matches = [self._settings[name] for name in names if name in self._settings]
        if len({(one.tenant, one.scopes) for one in matches}) != 1:
            problem = "more than one tenant" if matches else "no tenant"
            raise Unauthenticated(f"the names in the client's certificate match {problem}: see identity.certificates")
        one = matches[0]
        return Principal(
            await self._tenants.named(one.tenant), Caller(id_, shown_of("certificate", one.san)), one.scopes
        )


@lru_cache(1000)
def _parsed(pem: bytes) -> tuple[x509.Certificate, str, list[str]]:
    """Return a certificate, its id, and its names."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        return certificate, f"cert_{sha256(pem).hexdigest()[:16]}", _names(certificate)
    except ValueError as error:
        raise Unauthenticated("the client certificate cannot be parsed") from error


def _names(certificate: x509.Certificate) -> list[str]:
    """Return the URIs and DNS names of a certificate, never its common name. Neither kind can pass for the other."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    uris = [name for name in names.get_values_for_type(x509.UniformResourceIdentifier) if ":" in name]
    return uris + [name for name in names.get_values_for_type(x509.DNSName) if ":" not in name]
