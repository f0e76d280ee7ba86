"""Who calls: for which tenant, by which credential, and what that is for. Never taken from a request."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.identity.keys import TENANT_SCOPES

if TYPE_CHECKING:
    from gateway.tenants import Tenant  # whose policy is read from the database, which shares its readers by tenant

# As much as is stored of who answered an approval.
_SHOWN_CHARS = 128


@dataclass(frozen=True)
class Caller:
    """The credential that a call came with.

    `shown` is what lists, logs and the audit show of it: a key's first characters, a certificate's name, a token's
    subject. Both are empty where there are no credentials.
    """

    key_id: str = ""
    shown: str = ""


def shown_of(kind: str, name: str) -> str:
    """Return what is shown of a credential that is no key: its kind, so that no name looks like a key, and its name."""
    return "".join(char if char.isprintable() else "?" for char in f"{kind}:{name}")[:_SHOWN_CHARS]


@dataclass(frozen=True)
class Principal:
    """Who calls. `tenant` is None for an operator, whose credential belongs to no tenant."""

    tenant: Tenant | None
    caller: Caller = Caller()
    scopes: tuple[str, ...] = TENANT_SCOPES


CALLER: ContextVar[Caller] = ContextVar("caller")
"""Set by gateway/serving/edge.py for each RPC; what an RPC starts, such as a run, inherits it."""

PRINCIPAL: ContextVar[Principal] = ContextVar("principal")
"""Set beside it; gateway/serving/edge.py reads it for an RPC."""


def caller_shown() -> str:
    """Return what is shown of the credential of who called; empty where there is none."""
    return CALLER.get(Caller()).shown


def actor() -> str:
    """Return who called, as the audit names it; "gateway" where nobody did."""
    return caller_shown() or "gateway"


def act_for(shown: str) -> None:
    """Let what this task does from now on be told as done by that credential, which began it; nobody calls any more."""
    CALLER.set(Caller(shown=shown))
