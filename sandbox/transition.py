"""What becomes of a sandbox, told to whoever keeps its history.

    creating -> running -> idle_stopped -> running -> ... -> removed
    creating -> failed

Each process tells what it does itself. A process that dies in between tells nothing; the next one tells what it found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["creating", "running", "idle_stopped", "failed", "removed"]


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


Tell = Callable[[Transition], None]
"""Takes note of a transition; it must neither wait nor raise."""


def nobody(transition: Transition) -> None:
    """Keep no history."""
    del transition
