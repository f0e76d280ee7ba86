"""The request id of a tool call: what identifies the request, and what is remembered of the call.

The journal finds it in the call's context (REQUEST of gateway/tool_calls/call_slots.py). The unique constraint of its
table on tenant and id lets only one gateway execute the call; see gateway/tool_calls/requested_calls.py.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from time import perf_counter

from agent.messages import ToolResult
from agent.state import ToolExecution
from gateway.errors import InProgress
from gateway.tool_calls.stored_result import StoredResult
from sandbox.process import ProgramResult


@dataclass
class ToolRequest:
    """A request with an id. `taken`: another call has the id, so this one did not execute.

    `program` is how a program with streams ended (gateway/tool_calls/program_calls.py).
    """

    id: str
    digest: str
    thread: str = ""
    started: float = field(default_factory=perf_counter)
    duration_s: float | None = None
    kept: ToolResult | None = None
    taken: bool = False
    program: ProgramResult | None = None

    @classmethod
    def of(cls, request_id: str, thread: str, name: str, arguments_json: str) -> ToolRequest:
        """Return the request of a call. Requests with equal thread, name and text of arguments are the same."""
        thread = thread or "default"
        content = json.dumps([thread, name, arguments_json])
        return cls(request_id, hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest(), thread)

    def columns(self) -> dict[str, str]:
        """Return the request's columns of the journal's row."""
        return {"request_id": self.id, "request_digest": self.digest}

    def keep(self, execution: ToolExecution) -> str | None:
        """Return what is remembered of a call that is over, as JSON, and fix its duration for every answer."""
        result = execution.result
        if result is None:
            return None
        self.duration_s = self.duration_s or perf_counter() - self.started
        self.kept = result
        more = {"verdict": execution.verdict, "approval_id": execution.approval_id, "program": self.program}
        return StoredResult.of(result, self.duration_s, **more).model_dump_json()

    def in_progress(self) -> InProgress:
        """Return the error for a repetition while the call runs."""
        return InProgress(f"request {self.id!r} is still running: repeat it in a moment to get its result")
