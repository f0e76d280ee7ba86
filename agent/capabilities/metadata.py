"""The agent's own notes on a thread: tools that read, write and list the thread's metadata, as before the step's calls.

The agent sees keys without a dot, its own and those of services; keys with a dot belong to capabilities. Writes are
checked again when they are stored, because several calls of one step may together exceed the limit.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated

import pydantic_core
from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema

from agent.hooks.hook import Hook, tool_name
from agent.messages import ToolResult
from agent.state import AgentState
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

MAX_KEYS = 256
MAX_VALUE_BYTES = 16 * 1024
MAX_DEPTH = 64
_SHOWN_BYTES = 64 * 1024
_WRITE = "metadata_write"
_KEY = r"^[A-Za-z0-9_-]{1,64}$"

_Key = Annotated[str, Field(pattern=_KEY, description="1 to 64 letters, digits, _ or -")]


def _json_bytes(value: JsonValue) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _depth(value: JsonValue) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _storable(value: JsonValue) -> JsonValue:
    # The depth first: pydantic accepts deeper values than its JSON parser reads back.
    if (depth := _depth(value)) > MAX_DEPTH:
        raise ValueError(f"is nested {depth} deep, and {MAX_DEPTH} is the limit")
    try:
        data = _json_bytes(value)
        same = pydantic_core.from_json(data) == value
    except ValueError as error:  # NaN, half of a surrogate pair
        raise ValueError(f"cannot be kept as JSON: {error}") from None
    if not same:
        raise ValueError("does not come back the same from JSON; send it as a string")
    if len(data) > MAX_VALUE_BYTES:
        limit = f"{MAX_VALUE_BYTES} is the limit; keep it in a file and store its path"
        raise ValueError(f"has {len(data)} bytes as JSON, and {limit}")
    return value


_Value = Annotated[
    JsonValue, AfterValidator(_storable), WithJsonSchema({}), Field(description="any JSON, 16 KiB at most")
]


class _Read(ToolArguments):
    key: _Key


class _Write(ToolArguments):
    key: _Key
    value: _Value


async def _read(asked: _Read, context: ToolContext) -> ToolResult:
    if context.run is None:
        return _NO_RUN
    metadata = context.run.state.metadata
    if asked.key not in metadata:
        return ToolResult.error(f"nothing is stored under {asked.key}; metadata_list shows the keys")
    # A service may store larger values than the agent.
    data = json.dumps(metadata[asked.key], ensure_ascii=False).encode("utf-8", "replace")
    if len(data) <= _SHOWN_BYTES:
        return ToolResult(data)
    return ToolResult(data[:_SHOWN_BYTES], note=f"[the first {_SHOWN_BYTES} of {len(data)} bytes]")


async def _write(asked: _Write, context: ToolContext) -> ToolResult:
    if context.run is None:
        return _NO_RUN
    if asked.value is None:
        return ToolResult(f"nothing is stored under {asked.key} now".encode())
    if _full(context.run.state.metadata, asked.key):
        return _TOO_MANY
    return ToolResult(f"stored {len(_json_bytes(asked.value))} bytes under {asked.key}".encode())


async def _list(_asked: ToolArguments, context: ToolContext) -> ToolResult:
    if context.run is None:
        return _NO_RUN
    keys = _visible(context.run.state.metadata)
    note = f"[the first {MAX_KEYS} of {len(keys)} keys]" if len(keys) > MAX_KEYS else ""
    return ToolResult(json.dumps(keys[:MAX_KEYS]).encode(), note=note)


_NO_RUN = ToolResult.error("this call belongs to no run, so there is no thread metadata")
_TOO_MANY = ToolResult.error(
    f"not stored: the limit of {MAX_KEYS} keys is reached; remove one by writing null to it, or reuse one"
)


def _visible(metadata: Mapping[str, JsonValue]) -> list[str]:
    return sorted(key for key in metadata if re.fullmatch(_KEY, key))


def _full(metadata: Mapping[str, JsonValue], key: str) -> bool:
    return key not in metadata and len(_visible(metadata)) >= MAX_KEYS


class MetadataWriter(Hook):
    """Stores what metadata_write got, in call order, up to the limit of keys."""

    name = "metadata_writer"
    when = tool_name(_WRITE)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if not tool.succeeded:
            return state
        asked = tool.judged.validated(_Write)
        if asked.value is None:
            return state.without_metadata(asked.key)
        if _full(state.metadata, asked.key):
            return state.with_result(_TOO_MANY)
        return state.with_metadata(asked.key, asked.value)


def metadata() -> Capability:
    """Return the three metadata tools."""
    lasting = "Store a JSON value under a key for as long as this thread lives. The value null removes the key."
    return Capability(
        "metadata",
        hooks=(MetadataWriter(),),
        tools=(
            Tool("metadata_read", "Read the value stored under a key before this step.", _Read, _read, own_state=True),
            Tool(_WRITE, lasting, _Write, _write, own_state=True),
            Tool("metadata_list", "List the keys stored before this step.", ToolArguments, _list, own_state=True),
        ),
    )
