"""API keys: `alk_` and 256 random bits. Only a SHA-256 is stored: with that much entropy no slow hash is needed.

A key has scopes: what it may be used for. One that makes agents act can never answer what they ask for.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import InvalidArgument

_PREFIX = "alk_"
_SHOWN_CHARS = 8
APPROVE = "approve"
ACTING_SCOPES = ("run", "tool", "files")
"""Runs; tool calls and processes; files of a thread. A key has these unless it is made with others."""
SCOPES = (*ACTING_SCOPES, APPROVE)


@dataclass(frozen=True)
class NewKey:
    """A key just made: `secret` is shown once, `shown` may appear in lists and logs."""

    id: str
    secret: str
    shown: str
    digest: str
    scopes: tuple[str, ...] = ACTING_SCOPES


def make_key(scopes: Iterable[str] = ACTING_SCOPES) -> NewKey:
    """Return a new random key; InvalidArgument for scopes that no key can have."""
    asked = checked_scopes(scopes)
    secret = _PREFIX + secrets.token_urlsafe(32)
    return NewKey(
        id=f"key_{secrets.token_hex(8)}",
        secret=secret,
        shown=secret[: len(_PREFIX) + _SHOWN_CHARS],
        digest=digest_of(secret),
        scopes=asked,
    )


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return scopes in their usual order; InvalidArgument for ones that no key can have."""
    asked = set(scopes)
    unknown = sorted(asked - set(SCOPES))
    if unknown or not asked:
        raise InvalidArgument(f"scope: {', '.join(unknown) or 'none'} given; there are {', '.join(SCOPES)}")
    if APPROVE in asked and len(asked) > 1:
        raise InvalidArgument(
            f"scope: a key that can {APPROVE} has no other scope, for who makes agents act must not answer what they "
            "ask for; make two keys"
        )
    return tuple(scope for scope in SCOPES if scope in asked)


def digest_of(secret: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()
