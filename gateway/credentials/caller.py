"""The credential of a call, as it is displayed and recorded."""

from contextvars import ContextVar
from dataclasses import dataclass

# What is stored of an approver.
_SHOWN_CHARS = 128


@dataclass(frozen=True)
class Caller:
    """The credential of a call.

    `shown` is what lists, logs and the audit display: a key's first characters, a certificate's name or a token's
    subject. Both are empty without a credential.
    """

    key_id: str = ""
    shown: str = ""


def shown_of(kind: str, name: str) -> str:
    """Return the display of a token or certificate; the prefix keeps any name from looking like a key."""
    return "".join(char if char.isprintable() else "?" for char in f"{kind}:{name}")[:_SHOWN_CHARS]


CALLER: ContextVar[Caller] = ContextVar("caller")
"""Set by gateway/serving/edge.py for each RPC; tasks that the RPC starts, such as a run, inherit it."""


def caller_shown() -> str:
    """Return the display of the caller's credential; empty if there is none."""
    return CALLER.get(Caller()).shown


def actor() -> str:
    """Return the caller as the audit names it; "gateway" if there is none."""
    return caller_shown() or "gateway"


def act_for(shown: str) -> None:
    """Attribute what this task does from now on to the credential that started it."""
    CALLER.set(Caller(shown=shown))
