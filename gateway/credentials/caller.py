"""The credential that a call came with, as it is shown and recorded."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

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


CALLER: ContextVar[Caller] = ContextVar("caller")
"""Set by gateway/serving/edge.py for each RPC; what an RPC starts, such as a run, inherits it."""


def caller_shown() -> str:
    """Return what is shown of the credential of who called; empty where there is none."""
    return CALLER.get(Caller()).shown


def actor() -> str:
    """Return who called, as the audit names it; "gateway" where nobody did."""
    return caller_shown() or "gateway"


def act_for(shown: str) -> None:
    """Let what this task does from now on be told as done by that credential, which began it; nobody calls any more."""
    CALLER.set(Caller(shown=shown))
