"""The slots of a call's context (agent.call_context) that more than one part of the gateway uses."""

from __future__ import annotations

from agent.call_context import Slot
from gateway.errors import QuotaExceeded
from gateway.tool_calls.tool_request import ToolRequest
from gateway.tool_calls.unrecorded_call import UnrecordedCall

REQUEST = Slot[ToolRequest]("request")
"""The request id that a service gave its call."""

EXECUTOR = Slot[object]("service executor")
"""What runs a service's call in place of the tools."""

REFUSED = Slot[QuotaExceeded]("refused by a quota")
"""Why a quota refused the call."""

UNRECORDED = Slot[UnrecordedCall]("unrecorded")
"""What the caller is told of a call that could not be recorded, or did not execute."""
