"""API keys: `alk_` and 256 random bits. Only a SHA-256 is stored: with that much entropy no slow hash is needed."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

_PREFIX = "alk_"
_SHOWN_CHARS = 8


@dataclass(frozen=True)
class NewKey:
    """A key just made: `secret` is shown once, `shown` may appear in lists and logs."""

    id: str
    secret: str
    shown: str
    digest: str


def make_key() -> NewKey:
    """Return a new random key."""
    secret = _PREFIX + secrets.token_urlsafe(32)
    return NewKey(
        id=f"key_{secrets.token_hex(8)}",
        secret=secret,
        shown=secret[: len(_PREFIX) + _SHOWN_CHARS],
        digest=digest_of(secret),
    )


def digest_of(secret: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()
