"""The bodies of E2B's REST requests. What has no counterpart here is named, and refused with one error."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from gateway.e2b.errors import NoCounterpart
from gateway.errors import InvalidArgument
from gateway.http.calls import body_of

BODY_LIMIT_BYTES = 32 * 1024
"""What is stored of a sandbox is not larger, and a list reads many."""
TIMEOUT_LIMIT_S = 7 * 86_400
DEFAULT_TIMEOUT_S = 300
_TEXT_CHARS = 4096


class Body(BaseModel):
    """A body: fields as E2B names them; an unknown one is refused, since ignoring it would change what is meant."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)


class AutoResume(Body):
    """Whether traffic resumes a paused sandbox."""

    enabled: bool = False
    timeout: int | None = None


class NetworkBody(Body):
    """What a sandbox may connect to, besides what the policy says."""

    allow_out: list[str] = Field(default=[], alias="allowOut", max_length=256)
    deny_out: list[str] = Field(default=[], alias="denyOut", max_length=256)
    allow_internet_access: bool | None = Field(default=None, alias="allow_internet_access")
    allow_public_traffic: bool | None = Field(default=None, alias="allowPublicTraffic")
    dns_servers: list[str] | None = Field(default=None, alias="dnsServers")
    egress_proxy: Any = Field(default=None, alias="egressProxy")
    mask_request_host: str | None = Field(default=None, alias="maskRequestHost")
    https_ports: list[int] | None = Field(default=None, alias="httpsPorts")
    rules: dict[str, Any] | None = None


class NewSandbox(Body):
    """POST /sandboxes and /v2/sandboxes."""

    template_id: str = Field(alias="templateID", min_length=1, max_length=256)
    timeout: int = Field(default=DEFAULT_TIMEOUT_S, ge=1, le=TIMEOUT_LIMIT_S)
    metadata: dict[str, str] = Field(default={}, max_length=256)
    env_vars: dict[str, str] = Field(default={}, alias="envVars", max_length=256)
    auto_pause: bool = Field(default=False, alias="autoPause")
    auto_pause_memory: bool | None = Field(default=None, alias="autoPauseMemory")
    auto_resume: AutoResume | None = Field(default=None, alias="autoResume")
    secure: bool | None = None
    allow_internet_access: bool | None = None
    network: NetworkBody | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: list[Any] | None = Field(default=None, alias="volumeMounts")

    def check(self) -> None:
        """Raise NoCounterpart for what cannot be done."""
        for name, value, instead in (
            ("mcp", self.mcp, "name MCP servers in the configuration"),
            ("iam", self.iam, "give credentials to connections in the configuration (docs/network.md)"),
            ("volumeMounts", self.volume_mounts, "files are in the sandbox's own workspace"),
        ):
            if value:
                raise NoCounterpart(f"{name}: {instead}")


class Pause(Body):
    """POST /sandboxes/ID/pause. A paused sandbox keeps its files alone, as GET /sandboxes/ID then says.

    Many SDKs ask for its memory too by default, so that is no error.
    """

    memory: bool | None = None
    require_healthy_guest: bool | None = Field(default=None, alias="requireHealthyGuest")


class Connect(Body):
    """POST /sandboxes/ID/connect and /v2/sandboxes/ID/connect, and /sandboxes/ID/resume."""

    timeout: int = Field(default=DEFAULT_TIMEOUT_S, ge=0, le=TIMEOUT_LIMIT_S)
    memory: bool | None = None
    auto_pause: bool | None = Field(default=None, alias="autoPause")


class Timeout(Body):
    """POST /sandboxes/ID/timeout."""

    timeout: int = Field(ge=0, le=TIMEOUT_LIMIT_S)


class Refresh(Body):
    """POST /sandboxes/ID/refreshes."""

    duration: int = Field(default=60, ge=0, le=TIMEOUT_LIMIT_S)


class NewSnapshot(Body):
    """POST /sandboxes/ID/snapshots."""

    name: str | None = Field(default=None, max_length=256)
    memory: bool | None = None


class Fork(Body):
    """POST /sandboxes/ID/fork."""

    timeout: int = Field(default=DEFAULT_TIMEOUT_S, ge=1, le=TIMEOUT_LIMIT_S)
    count: int = Field(default=1, ge=1, le=16)


class ListQuery(Body):
    """GET /sandboxes and /v2/sandboxes."""

    metadata: str = Field(default="", max_length=_TEXT_CHARS)
    state: str = "running,paused"
    order: Literal["asc", "desc"] = "desc"
    started_after: str = Field(default="", alias="startedAfter", max_length=64)
    template: str = ""
    next_token: str = Field(default="", alias="nextToken", max_length=1024)
    limit: int = Field(default=100, ge=1, le=100)


B = TypeVar("B", bound=Body)


async def read_body(kind: type[B], request: Request) -> B:
    """Return the body of a request; an empty one has no fields. Raises InvalidArgument, TooLarge."""
    raw = await body_of(request, BODY_LIMIT_BYTES)
    return parsed(lambda: kind.model_validate_json(raw or b"{}"))


def read_query(kind: type[B], request: Request) -> B:
    """Return the query of a request."""
    return parsed(lambda: kind.model_validate(dict(request.query_params)))


def parsed(make: Callable[[], B]) -> B:
    """Return what `make` returns, with InvalidArgument for what is not valid."""
    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise NoCounterpart(f"{where}: unknown here, so it is refused and not ignored") from None
        raise InvalidArgument(f"{where or 'body'}: {first['msg']}") from None
