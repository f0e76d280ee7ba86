"""The requests that a gateway makes (docker_requests.py), and what is validated in each. All others are refused."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from sandbox.engine_proxy.container_body import OWN_NAME, Refused
from sandbox.engine_proxy.request_head import Head

_CONTAINER = r"/containers/(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,250})"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}"


@dataclass(frozen=True)
class Route:
    """A kind of request: its parameters and its body.

    `body`: "container" and "volume" are parsed and validated, "stream" passes unchanged, "none" is dropped. `starts`
    says that the request starts the container, `files` that the engine reads or writes files of the container.
    """

    method: str
    path: str
    parameters: tuple[str, ...] = ()
    _: KW_ONLY
    body: Literal["none", "container", "volume", "stream"] = "none"
    starts: bool = False
    files: bool = False


ROUTES = (
    Route("GET", "/_ping"),
    Route("HEAD", "/_ping"),
    Route("GET", "/version"),
    Route("GET", "/info"),
    Route("GET", "/images/json", ("all", "digests", "filter", "filters", "only_ids")),
    Route("GET", f"/images/{_IMAGE}/json"),
    # From a registry only: to load an image from a URL the engine would fetch anything its host can reach.
    Route("POST", "/images/create", ("fromImage", "tag", "platform")),
    Route("GET", "/containers/json", ("all", "filters", "limit", "size", "trunc_cmd")),
    Route("POST", "/containers/create", ("name",), body="container"),
    Route("GET", f"{_CONTAINER}/json"),
    Route("POST", f"{_CONTAINER}/start", starts=True),
    Route("POST", f"{_CONTAINER}/stop", ("t",)),
    Route("POST", f"{_CONTAINER}/kill", ("signal",)),
    Route("POST", f"{_CONTAINER}/wait", ("condition",)),
    Route("GET", f"{_CONTAINER}/stats", ("stream", "one-shot")),
    Route("GET", f"{_CONTAINER}/archive", ("path",), files=True),
    Route("PUT", f"{_CONTAINER}/archive", ("path",), body="stream", files=True),
    Route("DELETE", _CONTAINER, ("v", "force", "link")),
    Route("GET", "/volumes", ("filters",)),
    Route("POST", "/volumes/create", body="volume"),
    Route("GET", f"/volumes/{OWN_NAME.pattern}"),
    Route("DELETE", f"/volumes/{OWN_NAME.pattern}", ("force",)),
)


def route_of(head: Head) -> tuple[Route, str | None]:
    """Return a request's route and the name or id of its container, if any; raises Refused."""
    for route in ROUTES:
        found = re.fullmatch(route.path, head.path) if route.method == head.method else None
        if found is None:
            continue
        unknown = sorted(set(head.query).difference(route.parameters))
        if unknown:
            raise Refused(f"{head.method} {head.path}: no parameter {unknown[0][:64]!r} for a gateway")
        name = head.query.get("name")
        if name is not None and not OWN_NAME.fullmatch(name):
            raise Refused("a container's name begins with airlock-")
        return route, found.groupdict().get("container")
    raise Refused(f"{head.method} {head.path}: no request that a gateway makes")
