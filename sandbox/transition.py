"""The states of a sandbox, and the transitions that its history records.

    creating -> running -> idle_stopped -> running -> ... -> removed
    creating -> failed               it did not come up; nothing of it stays, if the engine is there to remove it
    running -> failed -> removed     it died, or was killed from outside; the next call gets another one

Each process reports what it does itself. What no process did, or one did and died before it reported it, is reported by
the process that finds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["creating", "running", "idle_stopped", "failed", "removed"]

# Reasons that several modules give.
UNUSED = "idle"
EVICTED = "evicted to free a slot for another sandbox"
ASKED = "requested"
STARTED_AGAIN = "restarted for a new request"
TAKEN = "found running by another gateway"
STOPPING = "the gateway is stopping"
OVERDUE = "its calls ran too long past its lifetime"
CALLS_LOST = "a gateway with calls in it was lost"
STOPPED_LIMIT = "stopped for too long, or too many stopped sandboxes"
DELETED = "the tenant was deleted"
CLAIM_LOST = "the process that claimed it was lost"
NO_ANSWER = "no answer"
MADE_OTHERWISE = "outdated: another image, runtime, limits or release, or past its lifetime"


@dataclass(frozen=True)
class Transition:
    """`tenant` and `thread` are the digests of owner_of(); `name` is the thread's, "" if not known.

    `reason` is for people, 512 characters at most. `observed` says that it was caused by another process, which reports
    it too unless it died: it is recorded only after "creating" or nothing.
    """

    tenant: str
    thread: str
    sandbox: str
    state: State
    reason: str
    name: str = ""
    observed: bool = False


OnTransition = Callable[[Transition], None]
"""Receives a transition; it must neither block nor raise."""


def ignored(transition: Transition) -> None:
    """Keep no history."""
    del transition
