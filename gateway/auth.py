"""Who calls: tenant, key and scopes come from the API key in the metadata, never from the request.

gateway/edge.py compares the scopes with what a service needs, and keeps the key for `caller(context)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.edge import Context
from gateway.errors import Unauthenticated
from gateway.keys import digest_of
from gateway.principal import Caller, Principal
from gateway.storage.key_store import KeyStore, StoredKey
from gateway.tenants import Tenants

# A revoked key stops working within this time; until then it is not looked up again.
_CACHE_S = 1.0
_CACHE_LIMIT = 10_000
_KEY_LIMIT_CHARS = 256


class KeyAuthenticator:
    """Reads `authorization: Bearer KEY`."""

    def __init__(self, keys: KeyStore, tenants: Tenants, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._tenants = tenants
        self._clock = clock
        self._cache: dict[str, tuple[float, StoredKey]] = {}

    async def __call__(self, context: Context) -> Principal:
        """Return who calls."""
        digest = digest_of(_key_in(context))
        cached = self._cache.get(digest)
        if cached is None or cached[0] < self._clock():
            key = await self._keys.find(digest)
            if key is None:
                raise Unauthenticated(
                    "this key is not known: make one with `airlock key create --tenant NAME --config FILE`"
                )
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            cached = self._cache[digest] = (self._clock() + _CACHE_S, key)
        key = cached[1]
        return Principal(await self._tenants.named(key.tenant), Caller(key.id, key.shown), key.scopes)


def _key_in(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer" and 0 < len(key) <= _KEY_LIMIT_CHARS:
                return key
    raise Unauthenticated("no key: send the metadata `authorization: Bearer KEY` (AIRLOCK_API_KEY for the CLI)")
