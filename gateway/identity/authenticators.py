"""The authenticator of API keys. Those of certificates and tokens are apart, because they import large libraries."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.credentials.caller import Caller
from gateway.credentials.keys import digest_of
from gateway.errors import AirlockError, KeyExpired, Unauthenticated
from gateway.identity.principal import Principal
from gateway.storage.key_store import KEY_EXPIRED, KEY_REVOKED, KeyStore, StoredKey
from gateway.tenancy.tenants import Tenants

# How long a key is not looked up again: together with the call guard's interval (call_guard.py) less than the second
# in which a revoked key stops working.
_KEY_CACHE_S = 0.5
_CACHE_LIMIT = 10_000


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
