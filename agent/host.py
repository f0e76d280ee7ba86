"""What the program around an agent brings: where tool calls go, who approves them, what outlives a process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from agent.recovery import Recovery
from agent.tools.approval import Approver
from agent.tools.tool import ToolExecutor


@dataclass(frozen=True)
class Host:
    """The defaults suit a script.

    `executor` runs the tool calls instead of a Toolbox of the agent's tools, which it usually wraps. Without an
    `approver` calls that need an approval are blocked. With a `recovery`, which belongs to one run, another process can
    go on with what was under way in a lost one. `concurrency` is how many tool calls of a step run at once.
    """

    executor: ToolExecutor | None = None
    approver: Approver | None = None
    recovery: Recovery | None = None
    concurrency: int = 8
    clock: Callable[[], float] = time.monotonic
    new_call_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}"

    def __post_init__(self) -> None:
        """Raise ValueError for a concurrency with which no tool call could run."""
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be at least 1")
