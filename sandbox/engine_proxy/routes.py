"""The requests that a gateway makes of an engine, and what is looked at in each. Every other one is refused.

docker_requests.py makes them; a test holds the two together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sandbox.engine_proxy.container_body import OWN_NAME, Refused
from sandbox.engine_proxy.request_head import Head

_CONTAINER = r"/containers/(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,250})"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}"


@dataclass(frozen=True)
class Route:
    """A kind of request: the parameters it may have, and which body, if any.

    `body`: "container" and "volume" are read and checked, "stream" goes through as it is, "none" is left out. `files`
    says that the engine reads or writes files of the container.
    """

    method: str
    path: re.Pattern[str]
    parameters: frozenset[str] = frozenset()
    body: Literal["none", "container", "volume", "stream"] = "none"
    starts: bool = False
    files: bool = False


def _route(
    method: str,
    path: str,
    *parameters: str,
    body: Literal["none", "container", "volume", "stream"] = "none",
    starts: bool = False,
    files: bool = False,
) -> Route:
    return Route(method, re.compile(path), frozenset(parameters), body, starts, files)


ROUTES = (
    _route("GET", "/_ping"),
    _route("HEAD", "/_ping"),
    _route("GET", "/version"),
    _route("GET", "/info"),
    _route("GET", "/images/json", "all", "digests", "filter", "filters", "only_ids"),
    _route("GET", f"/images/{_IMAGE}/json"),
    # From a registry only: an image from a URL would have the engine fetch what its host can reach.
    _route("POST", "/images/create", "fromImage", "tag", "platform"),
    _route("GET", "/containers/json", "all", "filters", "limit", "size", "trunc_cmd"),
    _route("POST", "/containers/create", "name", body="container"),
    _route("GET", f"{_CONTAINER}/json"),
    _route("POST", f"{_CONTAINER}/start", starts=True),
    _route("POST", f"{_CONTAINER}/stop", "t"),
    _route("POST", f"{_CONTAINER}/kill", "signal"),
    _route("POST", f"{_CONTAINER}/wait", "condition"),
    _route("GET", f"{_CONTAINER}/stats", "stream", "one-shot"),
    _route("GET", f"{_CONTAINER}/archive", "path", files=True),
    _route("PUT", f"{_CONTAINER}/archive", "path", body="stream", files=True),
    _route("DELETE", _CONTAINER, "v", "force", "link"),
    _route("GET", "/volumes", "filters"),
    _route("POST", "/volumes/create", body="volume"),
    _route("GET", f"/volumes/{OWN_NAME.pattern}"),
    _route("DELETE", f"/volumes/{OWN_NAME.pattern}", "force"),
)


def route_of(head: Head) -> tuple[Route, str | None]:
    """Return a request's route, and the container it is about, by a name or an id; Refused for one that has none."""
    for route in ROUTES:
        found = route.path.fullmatch(head.path) if route.method == head.method else None
        if found is None:
            continue
        unknown = sorted(set(head.query) - route.parameters)
        if unknown:
            raise Refused(f"{head.method} {head.path}: no parameter {unknown[0][:64]!r} for a gateway")
        name = head.query.get("name")
        if name is not None and not OWN_NAME.fullmatch(name):
            raise Refused("a container's name begins with airlock-")
        return route, found.groupdict().get("container")
    raise Refused(f"{head.method} {head.path}: no request that a gateway makes")
