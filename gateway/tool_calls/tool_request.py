"""The request id of a tool call: what identifies the request, and what is remembered of the call.

The journal finds it in the call's context (REQUEST). The unique constraint of its table on tenant and id lets only one
gateway execute the call; see gateway/tool_calls/requested_calls.py.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from agent.messages import ToolResult
from agent.state import ToolExecution
from agent.tool_call import Slot
from gateway.errors import InProgress, RequestIdReused
from gateway.storage.request_store import RequestedCall
from gateway.tool_calls.outcome_retry_queue import OutcomeRetryQueue
from gateway.tool_calls.stored_result import StoredResult
from sandbox.protocols import ProgramResult


@dataclass
class ToolRequest:
    """A request with an id. `taken`: another call has the id, so this one did not execute.

    `kept` is the result that the journal wrote, `program` how a program with streams ended
    (gateway/tool_calls/program_calls.py).
    """

    id: str
    digest: str
    thread: str = ""
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
        result, context = execution.result, execution.context
        if result is None:
            return None
        self.duration_s = self.duration_s or context.clock() - context.started_s
        self.kept = result
        more = {"verdict": execution.verdict, "approval_id": execution.approval_id, "program": self.program}
        return StoredResult.of(result, self.duration_s, **more).model_dump_json()

    def in_progress(self) -> InProgress:
        """Return the error for a repetition while the call runs."""
        return InProgress(f"request {self.id!r} is still running: repeat it in a moment to get its result")

    def check_digest(self, digest: str) -> None:
        """Raise RequestIdReused if the call that has this id is a different one."""
        if digest != self.digest:
            raise RequestIdReused(
                f"request_id: {self.id!r} was already used for a different call; use a new one for each call"
            )

    def check_ended(self, stored: RequestedCall, late: OutcomeRetryQueue) -> None:
        """Raise RequestIdReused for a different call, InProgress for one that runs, Unavailable if `late` has it."""
        self.check_digest(stored.digest)
        if stored.state == "executing":
            late.refuse(stored.id)
            raise self.in_progress()


REQUEST = Slot[ToolRequest]("request")
"""The request id that a service gave its call."""
