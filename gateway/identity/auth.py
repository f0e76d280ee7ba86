"""Authenticates a call by its credential, never by its request: an API key, a signed token or a client certificate.

`authorization: Bearer ...` takes precedence over the connection's certificate. gateway/serving/edge.py checks the
scopes.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.config.identity_settings import IdentitySettings
from gateway.credentials.keys import PREFIX
from gateway.errors import Unauthenticated
from gateway.identity.call_credentials import Context
from gateway.identity.certificate_authenticator import CertificateAuthenticator
from gateway.identity.denials import Denials
from gateway.identity.key_authenticator import KeyAuthenticator
from gateway.identity.key_set import KeySet, from_file, from_url
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
Authenticate = Callable[[str], Awaitable[Principal]]


@dataclass(frozen=True)
class Authentication:
    """Selects the authenticator for a call."""

    keys: Authenticate
    tokens: Authenticate | None
    certificates: CertificateAuthenticator
    denials: Denials

    async def __call__(self, context: Context) -> Principal:
        """Return the caller; raise Unauthenticated, after recording the denial, if there is none."""
        try:
            return await self._principal(context)
        except Unauthenticated as error:
            self.denials.record(context.peer(), str(error), error.audit_details)
            raise

    async def _principal(self, context: Context) -> Principal:
        secret = _secret_in(context)
        if secret is None:
            caller = await self.certificates(context)
            if caller is None:
                raise Unauthenticated(
                    "the request has no API key: send the metadata `authorization: Bearer KEY` (the CLI reads "
                    "AIRLOCK_API_KEY)"
                )
            return caller
        is_token = self.tokens is not None and secret.count(".") == _DOTS and not secret.startswith(PREFIX)
        if self.tokens is not None and is_token and len(secret) <= _TOKEN_LIMIT_CHARS:
            return await self.tokens(secret)
        if len(secret) > _KEY_LIMIT_CHARS:
            raise Unauthenticated("the key is longer than any valid key")
        return await self.keys(secret)


def authentication(
    settings: IdentitySettings, path_of: Callable[[Path], Path], database: Database, tenants: Tenants
) -> Authentication:
    """Return the authentication that a configuration asks for; `path_of` resolves the paths in it."""
    issuers = []
    for one in settings.jwt:
        fetch = from_file(path_of(one.jwks_file)) if one.jwks_file is not None else from_url(str(one.jwks_url))
        issuers.append(Issuer(one, KeySet(one.issuer, fetch)))
    return Authentication(
        KeyAuthenticator(KeyStore(database), tenants),
        TokenAuthenticator(issuers, tenants) if issuers else None,
        CertificateAuthenticator(settings.certificates, tenants),
        Denials(AuditStore(database)),
    )


def _secret_in(context: Context) -> str | None:
    """Return the bearer secret of a call, None if it has none; Unauthenticated for another scheme."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, secret = value.partition(" ")
            if scheme.lower() != "bearer" or not secret:
                raise Unauthenticated("authorization: must be `Bearer KEY`")
            return secret
    return None
