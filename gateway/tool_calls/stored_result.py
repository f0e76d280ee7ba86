"""The result of a tool call as `tool_calls.result` has it, without secrets: one form for runs and for request ids.

The call's row has the rest. A result is kept for a run until its step is, and for a request id as long as that is
remembered. Rows of earlier versions are read too: their bytes are base64, in `content`, or in `text` and `base64`.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

from agent.frozen import storable_text
from agent.messages import Evicted, ToolResult
from agent.state import Verdict
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
        content = result.content
        return cls.model_construct(
            outcome=result.outcome,
            is_error=result.is_error,
            exit_code=result.exit_code,
            evicted=result.evicted,
            content=content,
            stdout=None if result.stdout == content else result.stdout,
            stderr=None if result.stderr == content else result.stderr,
            note=storable_text(result.note),
            withheld_by=result.withheld_by,
            would_be_withheld_by=result.would_be_withheld_by,
            duration_s=duration_s,
            **more,
        )

    def result(self) -> ToolResult:
        """Return the result as it was."""
        return ToolResult(
            content=self.content,
            outcome=self.outcome,
            is_error=self.is_error,
            exit_code=self.exit_code,
            evicted=self.evicted,
            stdout=self.content if self.stdout is None else self.stdout,
            stderr=self.content if self.stderr is None else self.stderr,
            note=self.note,
            withheld_by=self.withheld_by,
            would_be_withheld_by=self.would_be_withheld_by,
        )

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, stored: Any) -> Any:
        """Take a run's result whose content is among its fields."""
        if isinstance(stored, dict) and "content" not in stored:
            kept = {name: value for name, value in stored.items() if name not in ("text", "base64")}
            return {**kept, "content": {name: stored[name] for name in ("text", "base64") if name in stored}}
        return stored
