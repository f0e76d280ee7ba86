"""Authenticates a call by its credential, never by its request: an API key, a signed token or a client certificate.

`authorization: Bearer ...` takes precedence over the connection's certificate. Denied calls are recorded in the log and
the operators' audit. gateway/serving/edge.py checks the scopes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog
from pydantic import JsonValue

from gateway.config.identity_settings import CertificateSettings, IdentitySettings, JwtSettings
from gateway.credentials.keys import PREFIX
from gateway.errors import AirlockError, Unauthenticated
from gateway.identity.authenticators import KeyAuthenticator
from gateway.identity.principal import VOUCHED_KEY, CallCredentials, Context, Principal
from gateway.storage.audit_store import OPERATORS, AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore
from gateway.support.hosts import host_of
from gateway.tenancy.tenants import Tenants

log = structlog.get_logger(__name__)
# A token is three parts between two dots.
_DOTS = 2
_TOKEN_LIMIT_CHARS, _KEY_LIMIT_CHARS = 8192, 256
Authenticate = Callable[[str], Awaitable[Principal]]
AuthenticatePeer = Callable[[Context], Awaitable[Principal | None]]
# A caller that guesses keys must neither fill the log and the audit nor hide the denials of another peer.
_RECORDED = 30
_RECORDED_PER_PEER = 3
_WINDOW_S = 60.0
_TEXT_CHARS = 300


class Denials:
    """Records denials without delaying the answer."""

    def __init__(self, audit: AuditStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._window_start = clock()
        self._recorded: Counter[str] = Counter()
        self._omitted = 0
        self._writing: set[asyncio.Task[None]] = set()

    def record(self, peer: str, why: str, details: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record a denied call: the peer as grpc names it, the caller's error, and details for operators alone.

        A revoked or expired key is counted by its id, so guesses from the same address do not hide it.
        """
        now = self._clock()
        if now - self._window_start >= _WINDOW_S:
            self._window_start = now
            self._recorded.clear()
        source = details.get("key_id") or host_of(peer)
        if self._recorded.total() >= _RECORDED or self._recorded[source] >= _RECORDED_PER_PEER:
            self._omitted += 1
            return
        self._recorded[source] += 1
        omitted, self._omitted = self._omitted, 0
        facts: dict[str, JsonValue] = {"peer": peer[:_TEXT_CHARS], "why": why[:_TEXT_CHARS], **details}
        facts["omitted_before"] = omitted
        log.warning("denied", **facts)
        entry = AuditEntry(OPERATORS, "denied", "unknown", details=facts)
        task = asyncio.create_task(self._write(entry), name="audit of a denied call")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, entry: AuditEntry) -> None:
        try:
            await self._audit.write(entry)
        except AirlockError as error:
            log.warning("a denied call is not in the audit", error=str(error))


@dataclass(frozen=True)
class Authentication:
    """Selects the authenticator for a call. `vouched` takes the id of a key that this process vouches for."""

    keys: Authenticate
    tokens: Authenticate | None
    certificates: AuthenticatePeer | None
    denials: Denials
    vouched: Authenticate | None = None

    async def __call__(self, context: Context | CallCredentials) -> Principal:
        """Return the caller; raise Unauthenticated, after recording the denial, if there is none."""
        try:
            return await self._principal(context)
        except Unauthenticated as error:
            self.denials.record(context.peer(), str(error), error.audit_details)
            raise

    async def _principal(self, context: Any) -> Principal:
        secret = _secret_in(context)
        if secret is None and self.vouched is not None:
            for key_id in context.auth_context().get(VOUCHED_KEY) or ():
                # It is let into a thread: one that was deleted meanwhile must not be made again.
                return replace(await self.vouched(key_id.decode()), makes_threads=False)
        if secret is None:
            caller = await self.certificates(context) if self.certificates is not None else None
            if caller is None:
                raise Unauthenticated(
                    "the request has no API key: send `authorization: Bearer KEY` as gRPC metadata or HTTP header (the "
                    "CLI reads AIRLOCK_API_KEY)"
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
    keys = KeyAuthenticator(KeyStore(database), tenants)
    tokens = _tokens(settings.jwt, path_of, tenants) if settings.jwt else None
    certificates = _certificates(settings.certificates, tenants) if settings.certificates else None
    return Authentication(keys, tokens, certificates, Denials(AuditStore(database)), keys.vouched)


def _tokens(settings: Sequence[JwtSettings], path_of: Callable[[Path], Path], tenants: Tenants) -> Authenticate:
    # Many gateways have API keys alone, and need no cryptography.
    from gateway.identity.key_set import KeySet, from_file, from_url  # noqa: PLC0415 - as above
    from gateway.identity.token_authenticator import Issuer, TokenAuthenticator  # noqa: PLC0415 - as above

    issuers = []
    for one in settings:
        fetch = from_file(path_of(one.jwks_file)) if one.jwks_file is not None else from_url(str(one.jwks_url))
        issuers.append(Issuer(one, KeySet(one.issuer, fetch)))
    return TokenAuthenticator(issuers, tenants)


def _certificates(settings: Sequence[CertificateSettings], tenants: Tenants) -> AuthenticatePeer:
    from gateway.identity.certificate_authenticator import CertificateAuthenticator  # noqa: PLC0415 - as in _tokens

    return CertificateAuthenticator(settings, tenants)


def _secret_in(context: Context) -> str | None:
    """Return the bearer secret of a call, None if it has none; Unauthenticated for another scheme."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, secret = value.partition(" ")
            if scheme.lower() != "bearer" or not secret:
                raise Unauthenticated("authorization: must be `Bearer KEY`")
            return secret
    return None
