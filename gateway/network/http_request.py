"""One HTTP request as the relay reads it: whom it is for and what it asks, in one spelling, and the headers to pass on.

Servers differ in how they read a request that is not plainly written. One that two of them could read in two ways is
refused: what was judged is what the server gets.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from gateway.support.hosts import canonical_host, shown_endpoint

if TYPE_CHECKING:
    import h11

Headers = tuple[tuple[bytes, bytes], ...]
_Authority = tuple[str, int]

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\\]+)(?::([0-9]{1,5}))?")
_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)(.*)")
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_SPACE = (b" ", b"\t")
# Of a method, which is on record.
_LIMIT_METHOD = 32
# Of a request's target: what other servers take. Its path is kept, in each way to read it, while the request may be
# under way.
_LIMIT_TARGET_BYTES = 8 * 1024
FIELDS_LIMIT = 200
"""The most header fields of one message. 64 KiB have room for thousands, and each field costs time."""
HINTS_LIMIT = 20
"""The most informational answers (1xx) to one request."""
_HOP = frozenset({b"connection", b"keep-alive", b"te", b"upgrade", b"http2-settings"})
# What frames or routes a message: neither may Connection name it, nor a trailer carry it (RFC 9110, 6.5.1).
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host"})
_NO_TRAILER = _FRAMING | {b"authorization", b"cookie", b"set-cookie", b"content-encoding", b"content-type", b"trailer"}


class Place(Protocol):
    """Where a connection or a request goes."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class Refused(Exception):
    """A request that is not passed on. `status` and `body`, as JSON, are what the client inside gets."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {body.get('reason', body.get('error'))}")
        self.status = status
        self.body = dict(body)

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body).encode() + b"\n"


@dataclass(frozen=True)
class Origin:
    """Where requests go: `scheme` is http or https, `host` is canonical."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of Host."""
        return shown_endpoint(self.host, None if self.port == _default_port(self.scheme) else self.port)


@dataclass(frozen=True)
class ProxyRequest:
    """A request.

    `target` (path and query) is what the server gets. `paths`: each way that a server may read its path, the first as
    sent; a request is allowed if all of them are, denied if one is. `headers` are those to pass on, without Host.
    """

    method: str
    origin: Origin
    target: str
    paths: tuple[str, ...]
    headers: Headers
    websocket: bool = False


def refusal(status: int, error: str, reason: str, place: Place | None = None, **more: Any) -> Refused:
    """Return a refusal; `more` is further fields of its body."""
    where = {} if place is None else {"host": place.host, "port": place.port}
    return Refused(status, {"error": error, "reason": reason, **where, **more})


def bad(reason: str, status: int = 400) -> Refused:
    """Return the refusal of a request that no rule is about."""
    return refusal(status, "bad_request", reason)


def check_field_count(count: int) -> None:
    """Raise Refused for a request with too many header fields."""
    if count > FIELDS_LIMIT:
        raise bad(f"the request has {count} header fields; send at most {FIELDS_LIMIT}", 431)


def check_answer(origin: Origin, field_count: int, hints: int = 0) -> None:
    """Raise Refused for a head or trailers of a server with too many fields, or after too many hints (1xx)."""
    if field_count > FIELDS_LIMIT:
        raise refusal(502, "bad_gateway", f"the server's answer has more than {FIELDS_LIMIT} header fields", origin)
    if hints > HINTS_LIMIT:
        raise refusal(502, "bad_gateway", f"the server sent more than {HINTS_LIMIT} informational answers", origin)


def check_head(head: bytes) -> None:
    """Raise Refused for a head, up to its empty line, that is too long or HTTP libraries read in different ways."""
    if not head.count(b"\r\n") == head.count(b"\r") == head.count(b"\n"):
        raise bad("a line of the head ends in a bare CR or LF")
    check_field_count(head.count(b"\r\n") - 2)  # without the request line and the empty line
    lines = head.split(b"\r\n")[1:-2]
    if any(line.startswith(_SPACE) for line in lines):
        raise bad("a header is folded over lines")
    fields = [(name.lower(), value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
    names = Counter(name for name, _ in fields)
    if names[b"content-length"] + names[b"transfer-encoding"] > 1:
        raise bad("it says more than once how long its body is")
    if any(name == b"content-length" and not (value.isdigit() and len(value) < 20) for name, value in fields):
        raise bad("Content-Length is not a number")


def read_request(request: h11.Request, origin: Origin | None) -> ProxyRequest:
    """Read a request to a proxy (absolute form), or in a tunnel to `origin` (origin form). Raises Refused."""
    if len(request.target) > _LIMIT_TARGET_BYTES:
        raise bad(f"the URL is longer than {_LIMIT_TARGET_BYTES} bytes; send what is long in the body", 414)
    method, target, version = request.method.decode(), request.target.decode(), request.http_version
    named, fields = dict(request.headers), request.headers.raw_items()
    if "#" in target:
        raise bad("a request has no fragment")
    if version not in {b"1.0", b"1.1"}:
        raise bad("only HTTP/1.0 and HTTP/1.1 are relayed", 505)
    if len(method) > _LIMIT_METHOD:  # it is on record
        raise bad(f"a method has at most {_LIMIT_METHOD} characters", 501)
    if method in {"CONNECT", "TRACE"}:
        raise bad(f"{method} is not relayed here; CONNECT is for a new connection", 501)
    if version == b"1.0" and b"transfer-encoding" in named:
        raise bad("HTTP/1.0 has no Transfer-Encoding")
    if b"expect" in named and named[b"expect"].lower() != b"100-continue":
        raise bad("Expect knows only 100-continue", 417)
    origin, rest = _absolute(target) if origin is None else (origin, target)
    written = named.get(b"host")
    if written is not None and _authority(written.decode("latin-1"), origin.scheme) != (origin.host, origin.port):
        raise bad("the header Host is not the host of the request")
    path, query, after = rest.partition("?")
    options = _connection_options(fields)
    if not _FRAMING.isdisjoint(options):
        raise bad("the header Connection names a header that the request needs")
    websocket = _is_websocket(method, named, options)
    headers = tuple((name, value) for name, value in end_to_end(fields) if name.lower() not in {b"host", b"expect"})
    if b"expect" in named and version == b"1.1":
        headers += ((b"Expect", b"100-continue"),)
    paths = _paths(path)
    return ProxyRequest(method, origin, paths[0] + query + after, paths, headers, websocket)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of a message that are not about one connection only (RFC 9110, 7.6.1), names as written."""
    headers = tuple(headers)
    dropped = _HOP | _connection_options(headers) - _FRAMING
    return tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    )


def trailers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the trailers of a message that may be passed on."""
    return tuple((name, value) for name, value in end_to_end(headers) if name.lower() not in _NO_TRAILER)


def _connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(option.strip(b" \t").lower() for option in b",".join(values).split(b","))


def _is_websocket(method: str, named: Mapping[bytes, bytes], options: frozenset[bytes]) -> bool:
    """Return whether it asks for a WebSocket. Raises Refused for other upgrades: h2c would go on unjudged."""
    upgrade = named.get(b"upgrade", b"").lower()
    if b"http2-settings" in named or upgrade not in {b"", b"websocket"}:
        raise bad("no upgrade is relayed but to websocket", 501)
    if not upgrade or b"upgrade" not in options:
        return False
    if method != "GET" or b"transfer-encoding" in named or named.get(b"content-length", b"0") != b"0":
        raise bad("a WebSocket is asked for by GET without a body")
    return True


def _absolute(target: str) -> tuple[Origin, str]:
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise bad("a proxy is asked for http://host/path")
    if found[1].lower() != "http":
        raise bad(f"{found[1].lower()}:// is not relayed in plain; a client asks for it by CONNECT")
    rest = found[3] if found[3].startswith("/") else "/" + found[3]
    return Origin("http", *_authority(found[2], "http")), rest


def _authority(text: str, scheme: str) -> _Authority:
    """Read host[:port]; what names a user is refused, for `http://good.example@evil.example/` goes elsewhere."""
    found = _AUTHORITY.fullmatch(text)
    port = int(found[2]) if found and found[2] else _default_port(scheme)
    if found is None or not 0 < port < 65_536:
        raise bad("the host is not written as host or host:port")
    try:
        return canonical_host(found[1]), port
    except ValueError as error:
        raise bad(f"the host is not one: {error}") from error


def _default_port(scheme: str) -> int:
    return 80 if scheme == "http" else 443


def _paths(path: str) -> tuple[str, ...]:
    """Return each way to read a path, the one to send first. Raises Refused for one that hides dot segments."""
    if not path.startswith("/") or "\\" in path:
        raise bad("the path does not begin with a slash, or has a backslash")
    sent = _without_dots(_PERCENT.sub(_decoded, path))
    hidden = sent
    for _ in range(3):
        if any(part.partition(";")[0] in {".", ".."} for part in re.split(r"[/\\]", hidden)):
            raise bad("the path hides dot segments")
        hidden = unquote(hidden, "latin-1")
    slashes = sent.replace("%2F", "/").replace("%5C", "/")
    merged = re.sub("/{2,}", "/", re.sub(r";[^/]*", "", slashes))
    return tuple(dict.fromkeys((sent, slashes, merged)))


def _decoded(found: re.Match[str]) -> str:
    if found[1] is None or found[1] == "00":
        raise bad("the path has a percent sign that means nothing, or NUL")
    character = chr(int(found[1], 16))
    return character if _UNRESERVED.fullmatch(character) else found[0].upper()


def _without_dots(path: str) -> str:
    """Resolve the dot segments of an absolute path (RFC 3986, 5.2.4)."""
    kept: list[str] = []
    parts = path.split("/")[1:]
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    if parts[-1] in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)
