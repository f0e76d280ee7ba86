"""Who calls: a key on the REST face, and on envd's face an access token, which is for one sandbox and one key.

An access token is made of the sandbox's secret and the id of the key that connected to the sandbox. It is checked
against both at each call, so it ends with the sandbox, and within a second of the key's end. The calls that it makes
are those of the key's holder, with the key's scopes.
"""

import base64
import hashlib
import hmac
import time
from dataclasses import dataclass

from starlette.requests import Request

from gateway.e2b.errors import Gone
from gateway.errors import PermissionDenied, ScopeMissing, Unauthenticated
from gateway.http.calls import InProcessClient, origin_of
from gateway.identity.auth import Authentication
from gateway.identity.principal import VOUCHED_KEY, CallCredentials, Principal
from gateway.serving.fair_loop import schedule_for
from gateway.serving.in_process import InProcessServices, Origin
from gateway.storage.e2b_store import E2bSandbox, E2bStore
from gateway.tenancy.tenants import Tenant

# What any use of sandboxes needs: their end, which comes in time as on request, deletes a thread. The calls that are
# made need their own scopes too.
_SCOPES = ("tool", "run")


@dataclass(frozen=True)
class KeyHolder:
    """The caller of the REST face, and a client that makes calls for it. `shown` is how the audit names the caller."""

    tenant: Tenant
    key_id: str
    shown: str
    client: InProcessClient


@dataclass
class Access:
    """Authenticates callers."""

    store: E2bStore
    authenticate: Authentication
    services: InProcessServices

    async def key_holder(self, request: Request) -> KeyHolder:
        """Return the caller of the REST face. Raises Unauthenticated, PermissionDenied."""
        key = request.headers.get("x-api-key", "")
        if not key:
            raise Unauthenticated("X-API-Key: an Airlock API key is expected (the SDKs read E2B_API_KEY)")
        if not (key.isascii() and key.isprintable()):
            raise Unauthenticated("X-API-Key: it holds characters that no key has")
        origin = origin_of(request)
        who = await self.authenticate(CallCredentials((("authorization", f"Bearer {key}"),), origin.peer, {}))
        tenant = _tenant_of(who)
        schedule_for(tenant.name)
        for scope in _SCOPES:
            if scope not in who.scopes:
                raise ScopeMissing(f"the key lacks the scope {scope}", scope=scope)
        if not who.caller.key_id:
            raise Unauthenticated(
                "X-API-Key: an Airlock API key is expected; issuers' tokens and client certificates do not work here"
            )
        client = InProcessClient(self.services.channel(origin), key)
        return KeyHolder(tenant, who.caller.key_id, who.caller.shown, client)

    async def token_holder(self, request: Request, sandbox: E2bSandbox) -> tuple[Tenant, InProcessClient]:
        """Return the tenant of the caller of envd's face, and a client for it. Raises Unauthenticated."""
        key_id = key_of_token(request, sandbox)
        if key_id is None:
            raise self._denied(
                request, "X-Access-Token: it is not valid for this sandbox; connect to the sandbox again"
            )
        return await self._vouched(request, sandbox, key_id)

    async def signer(
        self, request: Request, sandbox: E2bSandbox, path: str, operation: str
    ) -> tuple[Tenant, InProcessClient]:
        """Return what token_holder does, for a URL that was signed with a token. Raises Unauthenticated."""
        query = request.query_params
        ends = query.get("signature_expiration")
        if ends is not None and not (ends.isdecimal() and len(ends) < 20 and int(ends) > time.time()):
            raise Unauthenticated("signature_expiration: the signature has expired")
        for key_id in reversed(sandbox.key_ids):
            parts = [path, operation, query.get("username", ""), access_token(sandbox, key_id)]
            digest = hashlib.sha256(":".join([*parts, *([] if ends is None else [ends])]).encode()).digest()
            expected = "v1_" + base64.b64encode(digest).decode().rstrip("=")
            if hmac.compare_digest(query.get("signature", "").encode(), expected.encode()):
                return await self._vouched(request, sandbox, key_id)
        raise self._denied(request, "signature: it is not valid for this path of this sandbox")

    async def sandbox(self, sandbox_id: str) -> E2bSandbox:
        """Return a sandbox that is neither ended nor about to be. Raises Gone."""
        found = await self.store.get(sandbox_id) if 0 < len(sandbox_id) <= 64 else None
        if found is None or (found.ends_us is not None and found.ends_us <= self.store.clock()):
            raise Gone.of(sandbox_id)
        return found

    def _denied(self, request: Request, why: str) -> Unauthenticated:
        """Return an error, after its record among the denied calls."""
        self.authenticate.denials.record(origin_of(request).peer, why)
        return Unauthenticated(why)

    async def _vouched(self, request: Request, sandbox: E2bSandbox, key_id: str) -> tuple[Tenant, InProcessClient]:
        origin = Origin(origin_of(request).peer, {VOUCHED_KEY: (key_id.encode(),)})
        tenant = _tenant_of(await self.authenticate(CallCredentials((), origin.peer, origin.certificate)))
        if tenant.name != sandbox.tenant:
            raise Unauthenticated("X-Access-Token: it is not valid for this sandbox")
        schedule_for(tenant.name)
        return tenant, InProcessClient(self.services.channel(origin), "")


def access_token(sandbox: E2bSandbox, key_id: str) -> str:
    """Return the access token of a key for a sandbox."""
    mac = hmac.new(sandbox.secret.encode(), key_id.encode(), hashlib.sha256).hexdigest()
    return f"{key_id}.{mac}"


def key_of_token(request: Request, sandbox: E2bSandbox) -> str | None:
    """Return the key whose access token a request has, which may be revoked; None if it has none of the sandbox."""
    headers = request.headers
    token = headers.get("x-access-token") or headers.get("e2b-traffic-access-token", "")
    key_id = token.partition(".")[0]
    is_own = bool(token) and hmac.compare_digest(token.encode(), access_token(sandbox, key_id).encode())
    return key_id if is_own else None


def _tenant_of(who: Principal) -> Tenant:
    if who.tenant is None:
        raise PermissionDenied("an operator's key belongs to no tenant: use a tenant's key")
    return who.tenant
