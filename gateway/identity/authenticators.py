"""The authenticators: of API keys, of client certificates and of signed tokens (JWT, RFC 7519, as in OpenID Connect).

The configuration maps a subject alternative name (SAN) of a certificate to a tenant. The listener has verified the
chain and the possession of the key (gateway/identity/tls.py). Connections outlive handshakes, so each call checks the
certificate's validity period again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import Any

import jwt
from cryptography import x509

from gateway.config.identity_settings import CertificateSettings, JwtSettings
from gateway.credentials.caller import Caller, shown_of
from gateway.credentials.keys import APPROVE, TENANT_SCOPES, digest_of
from gateway.errors import AirlockError, KeyExpired, Unauthenticated
from gateway.identity.key_set import KeySet
from gateway.identity.principal import Context, Principal
from gateway.storage.key_store import KEY_EXPIRED, KEY_REVOKED, KeyStore, StoredKey
from gateway.tenancy.tenants import Tenants

# How long a key is not looked up again: together with the call guard's interval (call_guard.py) less than the second
# in which a revoked key stops working.
_KEY_CACHE_S = 0.5
_CACHE_LIMIT = 10_000
# Those that every token must have.
_CLAIMS = ("exp", "nbf", "aud", "iss", "sub")
# A token is verified again after this time, in case its issuer has withdrawn the key.
_TOKEN_CACHE_S = 30.0
_SUBJECT_LIMIT_CHARS = 256


@dataclass(eq=False)
class KeyAuthenticator:
    """Authenticates the secret of a key."""

    keys: KeyStore
    tenants: Tenants
    clock: Callable[[], float] = time.monotonic
    _cache: dict[str, tuple[float, StoredKey]] = field(default_factory=dict)

    async def __call__(self, secret: str) -> Principal:
        """Return the caller; Unauthenticated for a key that is unknown, revoked or expired.

        An expired key raises KeyExpired, since only its holder can send it. A revoked one may be stolen and gets the
        same answer as an unknown one; `audit_details` show operators which it was.
        """
        digest = digest_of(secret)
        cached = self._cache.get(digest)
        if cached is None or cached[0] < self.clock():
            key = await self.keys.find(digest)
            if key is None:
                self._cache.pop(digest, None)
                details = await self._audit_details(digest)
                if details.get("key_state") == KEY_EXPIRED:
                    raise KeyExpired("the API key has expired: ask an operator for a new one", audit_details=details)
                raise Unauthenticated(
                    "the API key is not valid: check it, or create one with `airlock key create --tenant NAME "
                    "--config FILE`",
                    audit_details=details,
                )
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            cached = self._cache[digest] = (self.clock() + _KEY_CACHE_S, key)
        key = cached[1]
        tenant = await self.tenants.named(key.tenant) if key.tenant else None
        return Principal(tenant, Caller(key.id, key.shown), key.scopes)

    async def _audit_details(self, digest: str) -> dict[str, str]:
        """Return what operators may know of a key that does not work."""
        try:
            over = await self.keys.over(digest)
        except AirlockError:
            return {}  # the key is refused in any case
        if over is None:
            return {"key_state": "unknown"}
        state = KEY_EXPIRED if over.revoked_us is None else KEY_REVOKED
        return {"key_state": state, "key_id": over.id, "shown": over.shown, "tenant": over.tenant}


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


@dataclass(frozen=True)
class Issuer:
    """A trusted issuer and its signature keys."""

    settings: JwtSettings
    keys: KeySet


@dataclass(frozen=True)
class _Verified:
    """A verified token. `until_s` is seconds since 1970, leeway included; `verified_s` is monotonic time."""

    until_s: float
    verified_s: float
    tenant: str
    caller: Caller
    scopes: tuple[str, ...]


class TokenAuthenticator:
    """Authenticates a token."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        tenants: Tenants,
        clock: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the time of day, for expiry; `monotonic_s` measures the age of a verification."""
        self._issuers = {issuer.settings.issuer: issuer for issuer in issuers}
        self._tenants = tenants
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._cache: dict[str, _Verified] = {}

    async def __call__(self, token: str) -> Principal:
        """Return the caller; once the signature is valid, Unauthenticated names the claim that is missing or wrong."""
        digest = digest_of(token)
        found = self._cache.get(digest)
        now_s = self._clock()
        if found is None or now_s > found.until_s or self._monotonic_s() - found.verified_s > _TOKEN_CACHE_S:
            self._cache.pop(digest, None)
            found = await self._verified(token, now_s)
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[digest] = found
        return Principal(await self._tenants.named(found.tenant), found.caller, found.scopes)

    async def _verified(self, token: str, now_s: float) -> _Verified:
        try:
            header = jwt.get_unverified_header(token)
            issuer = self._issuers[jwt.decode(token, options={"verify_signature": False})["iss"]]
        except (jwt.PyJWTError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Unauthenticated("this is not a token, or its issuer is not known here") from error
        settings = issuer.settings
        if header.get("alg") not in settings.algorithms:
            raise Unauthenticated(f"tokens of {settings.issuer} must be signed with {', '.join(settings.algorithms)}")
        public = await issuer.keys.key(str(header.get("kid", "")))
        if public.algorithm not in (None, header["alg"]):
            raise Unauthenticated("the token is signed with another algorithm than its key is for")
        try:
            # exp and nbf are compared below, with the injected clock.
            claims: Mapping[str, Any] = jwt.decode(
                token,
                public.key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                options={"require": list(_CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated(f"the token is not valid: {error}") from error
        until_s = _seconds(claims, "exp") + settings.leeway_s
        if now_s > until_s or now_s < _seconds(claims, "nbf") - settings.leeway_s:
            raise Unauthenticated("the token has expired or is not yet valid: get a new one from its issuer")
        subject = str(claims["sub"])
        _check_text("sub", subject)
        if not 0 < len(subject) <= _SUBJECT_LIMIT_CHARS:
            raise Unauthenticated(f"the token's sub claim must have 1 to {_SUBJECT_LIMIT_CHARS} characters")
        named = f"{settings.issuer} {subject}"
        shown = shown_of("token", subject if len(self._issuers) == 1 else named)
        caller = Caller(f"token_{digest_of(named)[:16]}", shown)
        return _Verified(
            until_s, self._monotonic_s(), _tenant(settings, claims, subject), caller, _scopes(settings, claims)
        )


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unauthenticated(f"the token's {name} contains an unpaired surrogate") from None


def _tenant(settings: JwtSettings, claims: Mapping[str, Any], subject: str) -> str:
    if settings.tenants is not None:
        for pattern, tenant in settings.tenants.items():
            if fnmatchcase(subject, pattern):
                return tenant
        raise Unauthenticated("no tenant matches the token's sub: see identity.jwt.tenants")
    named = claims.get(settings.named_by)
    if not isinstance(named, str) or not named:
        raise Unauthenticated(f"the token names no tenant in its {settings.named_by} claim")
    _check_text(settings.named_by, named)
    return named


def _scopes(settings: JwtSettings, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the token's scopes that are Airlock's; issuers may add others."""
    claim = claims.get(settings.scopes_claim)
    if claim is None:
        return settings.scopes
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    scopes = tuple(scope for scope in TENANT_SCOPES if scope in words)
    if APPROVE in scopes and len(scopes) > 1:
        raise Unauthenticated(f"a token with the scope {APPROVE} may have no other: an agent must not approve itself")
    return scopes


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"the token's {name} is not a number of seconds")
    try:
        datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        raise Unauthenticated(f"the token's {name} is out of range") from None
    return float(value)
