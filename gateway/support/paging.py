"""Pages of a list: their size, and the token of the next page.

A token is base64 of the sort key of a page's last entry and of a digest of the query. It is opaque but not secret: it
only selects a position within the caller's tenant. A token of another query is INVALID_ARGUMENT.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.errors import InvalidArgument

PAGE, PAGE_LIMIT = 50, 200
_MISMATCH = "page_token: it does not belong to this query; leave it out to start over"
Place = tuple[int, str]
"""The sort key of an entry: its creation time in microseconds, or its position, and its id."""
_Row = TypeVar("_Row")


def page_size(size: int, *, usual: int = PAGE, limit: int = PAGE_LIMIT) -> int:
    """Return the number of entries of a page."""
    if not 0 <= size <= limit:
        raise InvalidArgument(f"page_size: between 1 and {limit:,}; 0 means {usual}")
    return size or usual


def paged(
    found: Sequence[_Row], size: int, place: Callable[[_Row], Place], *query: object
) -> tuple[Sequence[_Row], str]:
    """Return a page, and the token of the next if one more entry was found than fits."""
    shown = found[:size]
    return shown, token_of(place(shown[-1]), *query) if len(found) > size else ""


def token_of(place: Place, *query: object) -> str:
    """Return the token of the page after an entry."""
    encoded = json.dumps([_digest(query), *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(encoded.encode()).decode("ascii").rstrip("=")


def place_of(token: str, *query: object) -> Place | None:
    """Return the place after which a page starts; None for the first page."""
    if not token:
        return None
    try:
        digest, at, id_ = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidArgument(_MISMATCH) from None
    valid = type(at) is int and isinstance(id_, str) and abs(at) < 2**63
    if not valid or not _is_text(id_) or digest != _digest(query):
        raise InvalidArgument(_MISMATCH)
    return at, id_


def _is_text(value: str) -> bool:
    """Return whether a database accepts it: JSON also allows NUL and unpaired surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _digest(query: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(query, default=str).encode()).hexdigest()[:16]
