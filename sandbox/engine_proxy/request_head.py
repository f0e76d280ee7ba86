"""Parses the head of an HTTP request, so strictly that no other parser could read a different request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

LIMIT_BYTES = 64 * 1024
_LINE = re.compile(r"([A-Z]{3,7}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_FIELD = re.compile(r"([A-Za-z0-9-]{1,64}):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
_VERSION = re.compile(r"/v1\.([0-9]{1,2})(?=/)")
# Before 1.25 a start could change the whole configuration.
_LEAST_MINOR_VERSION = 40


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
