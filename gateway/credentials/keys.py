"""API keys: `alk_` and 256 random bits. Only a SHA-256 is stored: with that much entropy no slow hash is needed.

A key has scopes. A key that makes agents act cannot also approve their calls, and only operators' keys have `operate`.
"""

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
"""Runs; tool calls and processes; files of a thread. The default scopes of a key."""
OPERATOR_SCOPES = (OPERATE, AUDIT)
"""Tenants, keys and policies of all; the audit. The only scopes of an operator's key, which has no tenant."""
SCOPES = (*ACTING_SCOPES, APPROVE, *OPERATOR_SCOPES)
TENANT_SCOPES = (*ACTING_SCOPES, APPROVE, AUDIT)


@dataclass(frozen=True)
class NewKey:
    """A new key: `secret` is displayed once, `shown` may appear in lists and logs."""

    id: str
    secret: str
    shown: str
    digest: str
    scopes: tuple[str, ...] = ACTING_SCOPES


def make_key(scopes: Iterable[str] = ACTING_SCOPES, *, operator: bool = False) -> NewKey:
    """Return a new random key; InvalidArgument for scopes that such a key cannot have."""
    checked = checked_scopes(scopes, operator=operator)
    secret = PREFIX + secrets.token_urlsafe(32)
    shown = secret[: len(PREFIX) + _SHOWN_CHARS]
    return NewKey(f"key_{secrets.token_hex(8)}", secret, shown, digest_of(secret), checked)


def checked_scopes(scopes: Iterable[str], *, operator: bool = False) -> tuple[str, ...]:
    """Return scopes in their canonical order; InvalidArgument for scopes that such a key cannot have."""
    asked = set(scopes)
    available = OPERATOR_SCOPES if operator else TENANT_SCOPES
    unknown = sorted(asked - set(available))
    if unknown or not asked:
        whose = "an operator's key" if operator else "a tenant's key"
        raise InvalidArgument(f"scope: {', '.join(unknown) or 'none'} given; {whose} has {', '.join(available)}")
    if APPROVE in asked and len(asked) > 1:
        raise InvalidArgument(f"scope: a key with {APPROVE} has no other scope: an agent must not approve itself")
    return tuple(scope for scope in SCOPES if scope in asked)


def checked_name(name: str) -> str:
    """Return the display name of a key; InvalidArgument if it is malformed."""
    if len(name) > _NAME_LIMIT_CHARS or not name.isprintable():
        raise InvalidArgument(f"name: {_NAME_LIMIT_CHARS} printable characters at most")
    return name


def digest_of(secret: str) -> str:
    """Return the stored digest of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()
