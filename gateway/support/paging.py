"""Pages of a list: how many entries one holds, and the token that says where the next begins.

A token is base64 of the sort key of a page's last entry and of a digest of the query. It is opaque, not secret: it only
chooses where to go on, within the tenant of whoever shows it. A token of another query is INVALID_ARGUMENT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.errors import InvalidArgument

PAGE, PAGE_LIMIT = 50, 200
_INTEGER_LIMIT = 2**63
_ALIEN = "page_token: not one of this query's; leave it out to begin anew"
Place = tuple[int, str]
"""The sort key of an entry: when it was made in microseconds, or its place, and its id."""
_Row = TypeVar("_Row")


def page_size(size: int, *, usual: int = PAGE, limit: int = PAGE_LIMIT) -> int:
    """Return how many entries a page holds."""
    if not 0 <= size <= limit:
        raise InvalidArgument(f"page_size: between 1 and {limit:,}; 0 means {usual}")
    return size or usual


def paged(
    found: Sequence[_Row], size: int, place: Callable[[_Row], Place], *query: object
) -> tuple[Sequence[_Row], str]:
    """Return a page, and the token of the next where one more was found than it holds."""
    shown = found[:size]
    return shown, token_of(place(shown[-1]), *query) if len(found) > size else ""


def token_of(place: Place, *query: object) -> str:
    """Return the token of the page that begins after an entry."""
    told = json.dumps([_digest(query), *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(told.encode()).decode("ascii").rstrip("=")


def place_of(token: str, *query: object) -> Place | None:
    """Return where a page begins; None for the first, whose token is empty."""
    if not token:
        return None
    try:
        told = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
        digest, at, id_ = told
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidArgument(_ALIEN) from None
    whole = type(at) is int and isinstance(id_, str) and abs(at) < _INTEGER_LIMIT
    if not whole or not _is_text(id_) or digest != _digest(query):
        raise InvalidArgument(_ALIEN)
    return at, id_


def _is_text(value: str) -> bool:
    """Return whether a database takes it: JSON also has NUL, and half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _digest(query: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(query, default=str).encode()).hexdigest()[:16]
