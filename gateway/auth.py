"""Who calls: the tenant comes from the API key in the metadata, never from the request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gateway.edge import Context
from gateway.errors import Unauthenticated
from gateway.keys import digest_of
from gateway.storage.store import Store
from gateway.tenants import Tenant, tenant_named

# A revoked key stops working within this time; until then its tenant is not looked up again.
_CACHE_S = 1.0
_CACHE_LIMIT = 10_000
_KEY_LIMIT_CHARS = 256


class KeyAuthenticator:
    """Reads `authorization: Bearer KEY`."""

    def __init__(
        self, store: Store, tenants: Mapping[str, Tenant], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._cache: dict[str, tuple[float, str]] = {}

    async def __call__(self, context: Context) -> Tenant:
        """Return the tenant of a call."""
        digest = digest_of(_key_in(context))
        cached = self._cache.get(digest)
        if cached is None or cached[0] < self._clock():
            tenant = await self._store.tenant_of_key(digest)
            if tenant is None:
                raise Unauthenticated(
                    "this key is not known: make one with `airlock key create --tenant NAME --config FILE`"
                )
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            cached = self._cache[digest] = (self._clock() + _CACHE_S, tenant)
        return tenant_named(self._tenants, cached[1])


def _key_in(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer" and 0 < len(key) <= _KEY_LIMIT_CHARS:
                return key
    raise Unauthenticated("no key: send the metadata `authorization: Bearer KEY` (AIRLOCK_API_KEY for the CLI)")
