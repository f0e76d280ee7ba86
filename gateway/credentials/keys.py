"""API keys: `alk_` and 256 random bits. Only a SHA-256 is stored: with that much entropy no slow hash is needed.

A key has scopes: what it may be used for. One that makes agents act can never answer what they ask for, and what is
for all tenants, `operate`, only operators' keys have.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import InvalidArgument

PREFIX = "alk_"
_SHOWN_CHARS = 8
_NAME_LIMIT_CHARS = 128
APPROVE = "approve"
OPERATE = "operate"
AUDIT = "audit"
ACTING_SCOPES = ("run", "tool", "files")
"""Runs; tool calls and processes; files of a thread. A key has these unless it is made with others."""
OPERATOR_SCOPES = (OPERATE, AUDIT)
"""Tenants, keys and policies of all; the audit. An operator's key, which belongs to no tenant, has no others."""
SCOPES = (*ACTING_SCOPES, APPROVE, *OPERATOR_SCOPES)
TENANT_SCOPES = (*ACTING_SCOPES, APPROVE, AUDIT)


@dataclass(frozen=True)
class NewKey:
    """A key just made: `secret` is shown once, `shown` may appear in lists and logs."""

    id: str
    secret: str
    shown: str
    digest: str
    scopes: tuple[str, ...] = ACTING_SCOPES


def make_key(scopes: Iterable[str] = ACTING_SCOPES, *, operator: bool = False) -> NewKey:
    """Return a new random key; InvalidArgument for scopes that no key can have, or none for such a holder."""
    asked = checked_scopes(scopes, operator=operator)
    secret = PREFIX + secrets.token_urlsafe(32)
    return NewKey(
        id=f"key_{secrets.token_hex(8)}",
        secret=secret,
        shown=secret[: len(PREFIX) + _SHOWN_CHARS],
        digest=digest_of(secret),
        scopes=asked,
    )


def checked_scopes(scopes: Iterable[str], *, operator: bool = False) -> tuple[str, ...]:
    """Return scopes in their usual order; InvalidArgument for ones that no key of such a holder can have."""
    asked = set(scopes)
    there_are = OPERATOR_SCOPES if operator else TENANT_SCOPES
    unknown = sorted(asked - set(there_are))
    if unknown or not asked:
        whose = "an operator's key" if operator else "a tenant's key"
        raise InvalidArgument(
            f"scope: {', '.join(unknown) or 'none'} given; there are {', '.join(there_are)} for {whose}"
        )
    if APPROVE in asked and len(asked) > 1:
        raise InvalidArgument(
            f"scope: a key that can {APPROVE} has no other scope, for who makes agents act must not answer what they "
            "ask for; make two keys"
        )
    return tuple(scope for scope in SCOPES if scope in asked)


def checked_name(name: str) -> str:
    """Return what a key is to be called; InvalidArgument."""
    if len(name) > _NAME_LIMIT_CHARS or not name.isprintable():
        raise InvalidArgument(f"name: {_NAME_LIMIT_CHARS} printable characters at most")
    return name


def digest_of(secret: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()
