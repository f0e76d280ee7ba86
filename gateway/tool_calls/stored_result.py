"""The result of a tool call as `tool_calls.result` has it, without secrets: one form for runs and for request ids.

The call's row has the rest. A result is kept for a run until its step is, and for a request id as long as that is
remembered. Rows of earlier versions are read too: their bytes are base64, in `content`, or in `text` and `base64`.
"""

from __future__ import annotations

import base64
from dataclasses import fields
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

from agent.frozen import storable_text
from agent.messages import Evicted, ToolResult
from agent.state import Verdict
from gateway.storage.request_store import RequestedCall
from sandbox.protocols import ProgramResult


def _read(stored: object) -> object:
    if isinstance(stored, dict):
        return stored["text"].encode() if "text" in stored else base64.b64decode(stored["base64"])
    return base64.b64decode(stored) if isinstance(stored, str) else stored


def _written(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


_Bytes = Annotated[bytes, BeforeValidator(_read), PlainSerializer(_written)]


_OF_RESULT = tuple(field.name for field in fields(ToolResult))
_STREAMS = ("stdout", "stderr")


class StoredResult(BaseModel):
    """A call that is over. `stdout` or `stderr` is None where it is the same as `content`: bytes are stored once."""

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
    duration_s: float
    verdict: Verdict | None = None
    approval_id: str = ""
    program: ProgramResult | None = None

    @classmethod
    def of(cls, result: ToolResult, duration_s: float, **more: Any) -> StoredResult:
        """Return the form of a result; `more` are the fields that the result does not have."""
        kept = {name: getattr(result, name) for name in _OF_RESULT}
        for stream in _STREAMS:
            kept[stream] = None if kept[stream] == result.content else kept[stream]
        kept["note"] = storable_text(result.note)
        return cls.model_construct(**kept, duration_s=duration_s, **more)

    @classmethod
    def remembered(cls, stored: RequestedCall) -> StoredResult | None:
        """Return what is remembered of a call that is over; None if its gateway was lost while it ran."""
        if stored.result is None or stored.state == "interrupted":
            return None
        return cls.model_validate_json(stored.result)

    def result(self) -> ToolResult:
        """Return the result as it was."""
        kept = {name: getattr(self, name) for name in _OF_RESULT}
        for stream in _STREAMS:
            kept[stream] = self.content if kept[stream] is None else kept[stream]
        return ToolResult(**kept)

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, stored: Any) -> Any:
        """Take a run's result whose content is among its fields."""
        if isinstance(stored, dict) and "content" not in stored:
            kept = {name: value for name, value in stored.items() if name not in ("text", "base64")}
            return {**kept, "content": {name: stored[name] for name in ("text", "base64") if name in stored}}
        return stored
