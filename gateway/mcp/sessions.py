"""Sessions of revisions up to 2025-11-25, without state: a session's id contains what the gateway must know of it.

An id is `FLAG.NONCE.DIGEST`. The digest is over the flag, the nonce and the credential that opened the session, so the
id is of no use with another credential, and one that a caller makes up for itself gives it nothing. Any gateway and
worker can check it, nothing is kept for it, and so there is nothing to bound, to expire or to lose in a restart. What a
session is needed for: a notification that cancels a call names the call by an id that is unique in its session alone.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import anyio

from gateway.identity.principal import Principal

RequestId = int | str
_LIMIT_CHARS = 128
_OPENS_URLS, _PLAIN = "u", "p"


@dataclass(frozen=True)
class Session:
    """An open session. `opens_urls`: the client said that it shows URLs to its user."""

    id: str
    opens_urls: bool

    @classmethod
    def opened(cls, principal: Principal, *, opens_urls: bool) -> Self:
        """Return a new session of a caller."""
        flag, nonce = _OPENS_URLS if opens_urls else _PLAIN, secrets.token_urlsafe(16)
        return cls(f"{flag}.{nonce}.{_digest(flag, nonce, principal)}", opens_urls)

    @classmethod
    def known(cls, session_id: str, principal: Principal) -> Self | None:
        """Return the session of an id, None if this caller has none with that id."""
        flag, _, rest = session_id[:_LIMIT_CHARS].partition(".")
        nonce, _, digest = rest.partition(".")
        if flag not in {_OPENS_URLS, _PLAIN} or digest != _digest(flag, nonce, principal):
            return None
        return cls(session_id, flag == _OPENS_URLS)


def _digest(flag: str, nonce: str, principal: Principal) -> str:
    tenant = "" if principal.tenant is None else principal.tenant.name
    fields = json.dumps([flag, nonce, tenant, principal.caller.key_id, principal.caller.shown])
    return hashlib.sha256(fields.encode()).hexdigest()[:32]


@dataclass(eq=False)
class RunningCalls:
    """The calls of sessions that this process executes. Admission bounds their number."""

    _scopes: dict[tuple[str, RequestId], anyio.CancelScope] = field(default_factory=dict)

    @contextlib.contextmanager
    def cancellable(self, session: Session, request_id: RequestId) -> Iterator[anyio.CancelScope]:
        """Run a block that `cancel` ends."""
        key = (session.id, request_id)
        with anyio.CancelScope() as scope:
            self._scopes[key] = scope
            try:
                yield scope
            finally:
                if self._scopes.get(key) is scope:
                    del self._scopes[key]

    def cancel(self, session: Session, request_id: object) -> None:
        """Cancel a call of the session, if it is in progress here."""
        scope = self._scopes.get((session.id, request_id)) if isinstance(request_id, RequestId) else None
        if scope is not None:
            scope.cancel()
