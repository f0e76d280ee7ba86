"""The authenticator of API keys. Those of certificates and tokens are apart, because they import large libraries."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.credentials.caller import Caller
from gateway.credentials.keys import digest_of
from gateway.errors import AirlockError, KeyExpired, NotFound, Unauthenticated
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
        key = self._cached(digest)
        if key is None:
            key = await self.keys.find(digest)
            if key is None:
                details = await self._audit_details(digest)
                if details.get("key_state") == KEY_EXPIRED:
                    raise KeyExpired("the API key has expired: ask an operator for a new one", audit_details=details)
                raise Unauthenticated(
                    "the API key is not valid: check it, or create one with `airlock key create --tenant NAME "
                    "--config FILE`",
                    audit_details=details,
                )
            self._keep(digest, key)
        return await self._principal(key)

    async def vouched(self, key_id: str) -> Principal:
        """Return the holder of a key that this process knows by its id; Unauthenticated if the key is over."""
        key = self._cached(key_id)
        if key is None:
            try:
                key = await self.keys.get(key_id)
            except NotFound:
                key = None
            if key is None or key.is_over(self.keys.clock()):
                raise Unauthenticated("the API key that this access token was issued for is revoked or expired")
            self._keep(key_id, key)
        return await self._principal(key)

    def _cached(self, name: str) -> StoredKey | None:
        until_s, key = self._cache.get(name, (0.0, None))
        if key is not None and until_s < self.clock():
            del self._cache[name]
            return None
        return key

    def _keep(self, name: str, key: StoredKey) -> None:
        if len(self._cache) >= _CACHE_LIMIT:
            self._cache.clear()
        self._cache[name] = (self.clock() + _KEY_CACHE_S, key)

    async def _principal(self, key: StoredKey) -> Principal:
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
