"""The authenticator of signed tokens (JWT, RFC 7519, as in OpenID Connect)."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import jwt

from gateway.config.identity_settings import JwtSettings
from gateway.credentials.caller import Caller, shown_of
from gateway.credentials.keys import APPROVE, TENANT_SCOPES, digest_of
from gateway.errors import Unauthenticated
from gateway.identity.key_set import KeySet
from gateway.identity.principal import Principal
from gateway.tenancy.tenants import Tenants

_CACHE_LIMIT = 10_000
# Those that every token must have.
_CLAIMS = ("exp", "nbf", "aud", "iss", "sub")
# A token is verified again after this time, in case its issuer has withdrawn the key.
_TOKEN_CACHE_S = 30.0
_SUBJECT_LIMIT_CHARS = 256


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
