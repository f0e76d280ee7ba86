"""The states of a sandbox, and the transitions that its history records.

    creating -> running -> idle_stopped -> running -> ... -> removed
    creating -> failed               it did not come up; nothing of it stays, if the engine is there to remove it
    running -> failed -> removed     it died, or was killed from outside; the next call gets another one

Each process reports what it does itself. What no process did, or one did and died before it reported it, is reported by
the process that finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["creating", "running", "idle_stopped", "failed", "removed"]

# Reasons that several modules give.
UNUSED = "nobody used it"
ROOM = "it made room for another"
ASKED = "somebody asked for it"
ASKED_AGAIN = "it was asked for again"
STOPPING = "its gateway stops"
OVERDUE = "calls in it went on for long after its lifetime"
CALLS_LOST = "a gateway that had calls in it is lost"
TOO_LONG = "it was stopped for too long, or too many were"
DELETED = "the tenant is deleted"
CLAIM_LOST = "the process that claimed it is gone"
NO_ANSWER = "it did not answer"
MADE_OTHERWISE = "it was made of another image, runtime, limits or release, or is too old"


@dataclass(frozen=True)
class Transition:
    """`tenant` and `thread` are the digests of owner_of(); `name` is the thread's, "" if not known.

    `reason` is for people, 512 characters at most.
    """

    tenant: str
    thread: str
    sandbox: str
    state: State
    reason: str
    name: str = ""


OnTransition = Callable[[Transition], None]
"""Receives a transition; it must neither block nor raise."""


def ignored(transition: Transition) -> None:
    """Keep no history."""
    del transition
