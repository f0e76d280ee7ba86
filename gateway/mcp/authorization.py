"""Who may send MCP requests, the refusals of others, and the metadata that tells a client where tokens come from.

The resource of tokens is URL/mcp, for all threads: an issuer that follows RFC 8707 writes it into `aud`, and a token
for another audience is refused, as over gRPC (`identity.jwt.audience`).
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.config.config import Config
from gateway.errors import AirlockError, NotFound, Overloaded, ScopeMissing, Unauthenticated
from gateway.http.calls import metadata_of, origin_of
from gateway.http.problems import status_of
from gateway.identity.principal import CallCredentials, Principal

Authenticate = Callable[[Any], Awaitable[Principal]]
PATH = "/mcp"
SCOPE = "tool"
"""What a credential must have; files need `files` in addition."""
_OFFERED = ("tool", "files")
_METADATA = "/.well-known/oauth-protected-resource"
# Those of JSON-RPC, and of the band that the protocol leaves to implementations.
INVALID_REQUEST, REFUSED = -32600, -32010


@dataclass(frozen=True)
class Authorization:
    """Authenticates HTTP requests. `public_url` is the listener's URL for clients, `issuers` are those of tokens."""

    authenticate: Authenticate
    issuers: Sequence[str] = ()
    public_url: str | None = None

    @classmethod
    def of(cls, config: Config, authenticate: Authenticate) -> Self:
        return cls(authenticate, [one.issuer for one in config.identity.jwt], config.http.public_url)

    async def principal(self, request: Request) -> Principal:
        """Return the caller, who has a tenant and may call tools; raises Unauthenticated, ScopeMissing."""
        origin = origin_of(request)
        who = await self.authenticate(CallCredentials(tuple(metadata_of(request)), origin.peer, origin.certificate))
        if who.tenant is None:
            raise ScopeMissing("an operator's key belongs to no tenant, and so calls no tools: use a tenant's key")
        if SCOPE not in who.scopes:
            said = ", ".join(who.scopes) or "none"
            raise ScopeMissing(f"this credential has the scopes {said}, and MCP needs {SCOPE}", scope=SCOPE)
        return who

    def url(self, request: Request) -> str:
        """Return the listener's URL as the client reaches it, without a path."""
        return self.public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"

    def refusal(self, request: Request, error: AirlockError) -> Response:
        """Return the answer to a request without a valid credential, or without the scope."""
        challenge = {}
        if self.issuers:
            challenge["resource_metadata"] = f"{self.url(request)}{_METADATA}{PATH}"
        if isinstance(error, ScopeMissing):
            challenge |= {"error": "insufficient_scope", "scope": SCOPE}
        elif isinstance(error, Unauthenticated) and "authorization" in request.headers:
            challenge["error"] = "invalid_token"
        said = ", ".join(f'{name}="{value}"' for name, value in challenge.items())
        return refused(error, {"www-authenticate": f"Bearer {said}" if said else "Bearer"})

    def routes(self) -> Sequence[Route]:
        """Return the routes of the metadata (RFC 9728), which need no credential."""
        paths = ("", PATH, f"{PATH}/threads/{{thread:path}}")
        return [Route(f"{_METADATA}{path}", self._metadata, methods=["GET"]) for path in paths]

    async def _metadata(self, request: Request) -> Response:
        if not self.issuers:
            raise NotFound("this gateway trusts no issuer of tokens: use an API key, `Authorization: Bearer KEY`")
        found = {
            "resource": f"{self.url(request)}{PATH}",
            "resource_name": "Airlock",
            "authorization_servers": list(self.issuers),
            "scopes_supported": list(_OFFERED),
            "bearer_methods_supported": ["header"],
        }
        return JSONResponse(found, headers={"cache-control": "no-store"})


def refused(error: AirlockError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a JSON-RPC error without an id, with the HTTP status of problem documents."""
    data: dict[str, Any] = {"reason": error.reason, **({"details": dict(error.details)} if error.details else {})}
    headers = dict(headers or {})
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        data["retry_after_s"] = error.retry_after_s
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return rpc_error(status_of(error), REFUSED, str(error), data, headers)


def rpc_error(
    status: int, code: int, message: str, data: Any = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON-RPC error that belongs to no request."""
    error: dict[str, Any] = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status, dict(headers or {}))
