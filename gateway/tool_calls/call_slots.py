"""What the gateway keeps in the context of a tool call (agent.call_context), beside what each hook has there."""

from __future__ import annotations

from agent.call_context import Slot
from gateway.errors import QuotaExceeded
from gateway.tool_calls.tool_request import ToolRequest
from gateway.tool_calls.unrecorded_call import UnrecordedCall

REQUEST = Slot[ToolRequest]("request")
"""The request id that a service gave its call."""

EXECUTOR = Slot[object]("service executor")
"""What a service runs in place of the tools."""

REFUSED = Slot[QuotaExceeded]("refused by a quota")
"""Why a quota refused the call."""

UNRECORDED = Slot[UnrecordedCall]("unrecorded")
"""What the caller hears of a call whose record the database did not take, or that did not execute."""
