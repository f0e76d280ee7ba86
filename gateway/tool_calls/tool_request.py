"""The request id of a tool call: what identifies the request, and what is stored of the call's result.

The journal finds it in the call's context (REQUEST). The unique constraint of its table on tenant and id lets only one
gateway execute the call; see gateway/tool_calls/requested_calls.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue
from pydantic_core import to_json

from agent.frozen import storable_text
from agent.messages import Attachment, Evicted, ToolResult
from agent.state import ToolExecution, Verdict
from agent.tool_call import Slot
from gateway.errors import InProgress, RequestIdReused
from gateway.storage.call_journal import RequestedCall
from gateway.tool_calls.outcome_retry_queue import OutcomeRetryQueue
from sandbox.protocols import ProgramResult


def _read(stored: object) -> object:
    if not isinstance(stored, dict):
        return stored
    return stored["text"].encode() if "text" in stored else base64.b64decode(stored["base64"])


def _written(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


_Bytes = Annotated[bytes, BeforeValidator(_read)]
_OF_RESULT = tuple(field.name for field in fields(ToolResult))
_STREAMS = ("stdout", "stderr")


class StoredResult(BaseModel):
    """The result of a call that is over as `tool_calls.result` has it, without secrets; the row has the rest.

    It is kept for a run until its step is, and for a request id as long as that is remembered. `stdout` or `stderr` is
    None where it is the same as `content`: bytes are stored once.
    """

    model_config = ConfigDict(frozen=True)
    outcome: str
    is_error: bool
    exit_code: int | None
    evicted: Evicted | None
    content: _Bytes
    stdout: _Bytes | None = b""
    stderr: _Bytes | None = b""
    note: str
    withheld_by: str = ""
    would_be_withheld_by: str = ""
    attachments: tuple[Attachment, ...] = ()
    structured: JsonValue = None
    duration_s: float
    verdict: Verdict | None = None
    approval_id: str = ""
    program: ProgramResult | None = None

    @staticmethod
    def json_of(result: ToolResult, duration_s: float, **more: Any) -> str:
        """Return what is stored of a result; `more` are the fields that the result does not have.

        No model is made for it: that would take as long as the writing.
        """
        kept = {name: getattr(result, name) for name in _OF_RESULT}
        kept["content"] = _written(result.content)
        for stream in _STREAMS:
            kept[stream] = None if kept[stream] == result.content else _written(kept[stream])
        kept["note"] = storable_text(result.note)
        return to_json({**kept, "duration_s": duration_s, **more}).decode()

    @classmethod
    def remembered(cls, stored: RequestedCall) -> StoredResult | None:
        """Return what is remembered of a call that is over; None if its gateway was lost while it ran."""
        if stored.result is None or stored.state == "interrupted":
            return None
        return cls.model_validate_json(stored.result)

    def result(self) -> ToolResult:
        kept = {name: getattr(self, name) for name in _OF_RESULT}
        for stream in _STREAMS:
            kept[stream] = self.content if kept[stream] is None else kept[stream]
        return ToolResult(**kept)


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
        return {"request_id": self.id, "request_digest": self.digest}

    def keep(self, execution: ToolExecution) -> str | None:
        """Return what is remembered of a call that is over, as JSON, and fix its duration for every answer."""
        result, context = execution.result, execution.context
        if result is None:
            return None
        self.duration_s = self.duration_s or context.clock() - context.started_s
        self.kept = result
        more = {"verdict": execution.verdict, "approval_id": execution.approval_id, "program": self.program}
        return StoredResult.json_of(result, self.duration_s, **more)

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
