"""The requests that a gateway makes (docker_requests.py), and what is validated in each. All others are refused."""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from sandbox.engine_proxy.container_body import OWN_NAME, Refused

LIMIT_BYTES = 64 * 1024
_LINE = re.compile(r"([A-Z]{3,7}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_FIELD = re.compile(r"([A-Za-z0-9-]{1,64}):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
_VERSION = re.compile(r"/v1\.([0-9]{1,2})(?=/)")
# Before 1.25 a start could change the whole configuration.
_LEAST_MINOR_VERSION = 40
_CONTAINER = r"/containers/(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,250})"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}"


class BadRequest(Exception):
    """The request is malformed or ambiguous."""


@dataclass(frozen=True)
class Head:
    """A request: `version` is "" or like /v1.41, and `path` is decoded, without the version."""

    method: str
    version: str
    path: str
    query: Mapping[str, str]
    fields: Mapping[str, str]

    @property
    def length_bytes(self) -> int | None:
        """The length of the body; None if it is chunked."""
        return None if "transfer-encoding" in self.fields else int(self.fields.get("content-length", "0"))


def read_head(data: bytes) -> Head:
    """Parse a head, including its final empty line; raises BadRequest."""
    lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise BadRequest("the request line is none")
    fields: dict[str, str] = {}
    for text in lines[1:]:
        field = _FIELD.fullmatch(text)
        name = field[1].lower() if field is not None else ""
        if field is None or name in fields:
            raise BadRequest("a header field is malformed, or there twice")
        fields[name] = field[2]
    _check_body(fields)
    parts = urlsplit(line[2])
    version = _VERSION.match(parts.path)
    if version is not None and int(version[1]) < _LEAST_MINOR_VERSION:
        raise BadRequest(f"version 1.{_LEAST_MINOR_VERSION} of the engine's API is the least")
    found = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32)
    query = dict(found)
    path = unquote(parts.path[version.end() :] if version is not None else parts.path)
    if len(query) != len(found) or parts.netloc or parts.fragment:
        raise BadRequest("a parameter is there twice, or the target is no path")
    if not path.isascii() or not path.isprintable() or {"", ".", ".."} & {*path.split("/")[1:]}:
        raise BadRequest("the path is not plain")
    return Head(line[1], version[0] if version is not None else "", path, query, fields)


def _check_body(fields: Mapping[str, str]) -> None:
    length, coding = fields.get("content-length"), fields.get("transfer-encoding")
    if "upgrade" in fields or "upgrade" in fields.get("connection", "").lower():
        raise BadRequest("no connection becomes another one here")
    if coding is not None and (coding.lower() != "chunked" or length is not None):
        raise BadRequest("the length of the body may be read in two ways")
    if length is not None and not re.fullmatch(r"[0-9]{1,15}", length):
        raise BadRequest("Content-Length is no number")


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
