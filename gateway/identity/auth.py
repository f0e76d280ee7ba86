"""Who calls, by the credential of the call, never by the request: an API key, a signed token, or a certificate.

`authorization: Bearer ...` goes before the certificate of the connection. gateway/serving/edge.py compares the scopes
with what an RPC needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.config.identity_settings import IdentitySettings, JwtSettings
from gateway.credentials.keys import PREFIX
from gateway.errors import Misconfigured, Unauthenticated
from gateway.identity.call_credentials import Context
from gateway.identity.certificate_authenticator import CertificateAuthenticator
from gateway.identity.denials import Denials
from gateway.identity.key_authenticator import KeyAuthenticator
from gateway.identity.key_set import Fetch, KeySet, from_file, from_url
from gateway.identity.principal import Principal
from gateway.identity.token_authenticator import Issuer, TokenAuthenticator
from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore
from gateway.tenancy.tenants import Tenants

_KEY_LIMIT_CHARS = 256
_TOKEN_LIMIT_CHARS = 8192
# A token is three parts between two dots.
_DOTS = 2
OfSecret = Callable[[str], Awaitable[Principal]]


class Authentication:
    """Picks the authenticator for a call."""

    def __init__(
        self, keys: OfSecret, tokens: OfSecret | None, certificates: CertificateAuthenticator, denials: Denials
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._certificates = certificates
        self._denials = denials

    async def __call__(self, context: Context) -> Principal:
        """Return who calls; Unauthenticated, noted, when it is nobody."""
        try:
            return await self._principal(context)
        except Unauthenticated as error:
            self._denials.note(context.peer(), str(error), error.noted)
            raise

    async def _principal(self, context: Context) -> Principal:
        secret = _secret_in(context)
        if secret is None:
            known = await self._certificates(context)
            if known is None:
                raise Unauthenticated(
                    "no key: send the metadata `authorization: Bearer KEY` (AIRLOCK_API_KEY for the CLI)"
                )
            return known
        is_token = self._tokens is not None and secret.count(".") == _DOTS and not secret.startswith(PREFIX)
        if self._tokens is not None and is_token and len(secret) <= _TOKEN_LIMIT_CHARS:
            return await self._tokens(secret)
        if len(secret) > _KEY_LIMIT_CHARS:
            raise Unauthenticated("what was sent as a key is longer than any key")
        return await self._keys(secret)


def authentication(
    settings: IdentitySettings, path_of: Callable[[Path], Path], database: Database, tenants: Tenants
) -> Authentication:
    """Return what a configuration asks for; `path_of` says where a file is that it names."""
    issuers = [Issuer(one, KeySet(one.issuer, _fetch(one, path_of))) for one in settings.jwt]
    return Authentication(
        KeyAuthenticator(KeyStore(database), tenants),
        TokenAuthenticator(issuers, tenants) if issuers else None,
        CertificateAuthenticator(settings.certificates, tenants),
        Denials(AuditStore(database)),
    )


def _fetch(issuer: JwtSettings, path_of: Callable[[Path], Path]) -> Fetch:
    if issuer.jwks_url is not None:
        return from_url(issuer.jwks_url)
    if issuer.jwks_file is None:
        raise Misconfigured(f"identity.jwt: {issuer.issuer} has neither jwks_url nor jwks_file")
    return from_file(path_of(issuer.jwks_file))


def _secret_in(context: Context) -> str | None:
    """Return what the call was sent with, None where it was sent with nothing; Unauthenticated for another scheme."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, secret = value.partition(" ")
            if scheme.lower() != "bearer" or not secret:
                raise Unauthenticated("authorization: `Bearer KEY` is expected")
            return secret
    return None
