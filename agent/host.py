"""What the program around an agent provides: execution of tool calls, approvals, and state that outlives a process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from agent.tools.approval import Approver
from agent.tools.recovery import Recovery
from agent.tools.tool import ToolExecutor


@dataclass(frozen=True)
class Host:
    """The defaults suit a script.

    `executor` runs the tool calls in place of a Toolbox of the agent's tools. Without an `approver`, calls that need an
    approval are blocked. A `recovery` belongs to one run. `concurrency` is how many tool calls of a step run at once.
    """

    executor: ToolExecutor | None = None
    approver: Approver | None = None
    recovery: Recovery | None = None
    concurrency: int = 8
    clock: Callable[[], float] = time.monotonic
    new_call_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}"

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be at least 1")
