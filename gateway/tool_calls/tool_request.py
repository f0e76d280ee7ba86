"""A tool call that its caller gave a request id: what tells it from another, and what is remembered of it.

The journal finds it in the call's context (REQUEST of gateway/tool_calls/call_slots.py). Its unique constraint on
tenant and id lets one of two gateways execute the call; see gateway/tool_calls/requested_calls.py for the rest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from time import perf_counter

from pydantic import Base64Bytes, BaseModel, ConfigDict

from agent.decisions import Verdict
from agent.judged_call import JudgedCall
from agent.messages import Evicted, ToolCall, ToolResult
from agent.state import ToolExecution
from gateway.errors import InProgress
from sandbox.process import ProgramResult


class RememberedCall(BaseModel):
    """What a repetition is answered with: a call that is over, as JSON in tool_calls.result."""

    model_config = ConfigDict(frozen=True)
    call_id: str
    name: str
    thread: str
    verdict: Verdict | None
    approval_id: str
    duration_s: float
    outcome: str
    is_error: bool
    exit_code: int | None
    evicted: Evicted | None
    content: Base64Bytes
    stdout: Base64Bytes
    stderr: Base64Bytes
    note: str
    program: ProgramResult | None = None

    def execution(self) -> ToolExecution:
        """Return the call as it ended; its arguments are not remembered."""
        call = ToolCall(id=self.call_id, name=self.name, arguments={})
        result = ToolResult(
            content=self.content,
            outcome=self.outcome,
            is_error=self.is_error,
            exit_code=self.exit_code,
            evicted=self.evicted,
            stdout=self.stdout,
            stderr=self.stderr,
            note=self.note,
        )
        return ToolExecution(call, call, JudgedCall.of(call), self.verdict, result, self.duration_s, self.approval_id)


@dataclass
class ToolRequest:
    """A request with an id. `taken`: another call has the id, and this one did not execute.

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
        """Return the request of a call; the same request is one of the same thread, name and text of arguments."""
        thread = thread or "default"
        told = json.dumps([thread, name, arguments_json])
        return cls(request_id, hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest(), thread)

    def columns(self) -> dict[str, str]:
        """Return what the journal's row has of the request."""
        return {"request_id": self.id, "request_digest": self.digest}

    def keep(self, execution: ToolExecution) -> str | None:
        """Return what is remembered of a call that is over, as JSON; its time ends here, for the answer too."""
        result = execution.result
        if result is None:
            return None
        self.duration_s = self.duration_s or perf_counter() - self.started
        self.kept = result
        remembered = RememberedCall.model_construct(
            call_id=execution.call.id,
            name="",  # no answer has it, and a model may have put anything in its place
            thread=self.thread,
            verdict=execution.verdict,
            approval_id=execution.approval_id,
            duration_s=self.duration_s,
            outcome=result.outcome,
            is_error=result.is_error,
            exit_code=result.exit_code,
            evicted=result.evicted,
            content=result.content,
            stdout=result.stdout,
            stderr=result.stderr,
            note=result.note,
            program=self.program,
        )
        return remembered.model_dump_json()

    def in_progress(self) -> InProgress:
        """Return the error of a repetition that is too early."""
        return InProgress(f"request {self.id!r} is still running: repeat it in a moment to get its result")
