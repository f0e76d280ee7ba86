"""Sections of the policy file on what becomes of large results, and on connections."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gateway.policy.fields import FILE_TOOLS, Section

_TOOL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

# What the daemon shows of output that it evicts; it refuses more (sandbox/daemon/programs/exec_request.py).
_EXCERPT_LIMIT_CHARS = 100_000


class EvictionSizes(Section):
    """Above `limit_chars` characters a result stays in the sandbox; its head and tail come back.

    What a command prints stays there above 1 MiB also where `limit_chars` is more.
    """

    limit_chars: int = Field(80_000, ge=100, le=10_000_000)
    head_chars: int = Field(2000, ge=0, le=_EXCERPT_LIMIT_CHARS)
    tail_chars: int = Field(2000, ge=0, le=_EXCERPT_LIMIT_CHARS)

    @model_validator(mode="after")
    def _fits(self) -> EvictionSizes:
        if self.head_chars + self.tail_chars > self.limit_chars:
            raise ValueError("head_chars and tail_chars together must not be more than limit_chars")
        if self.head_chars + self.tail_chars > _EXCERPT_LIMIT_CHARS:
            raise ValueError(f"head_chars and tail_chars together must not be more than {_EXCERPT_LIMIT_CHARS:,}")
        return self


def _evicting_tool(tool: str) -> str:
    if tool in FILE_TOOLS:
        raise ValueError(f"{tool} is never evicted, its results come in pages; name execute or a tool of the agent's")
    if not _TOOL_NAME.fullmatch(tool):
        raise ValueError(f"{tool[:128]!r} is not the name of a tool: 1 to 128 letters, digits, '.', '_' or '-'")
    return tool


class EvictionSection(EvictionSizes):
    """Sizes for all tools, and others for the ones named in `tools`. The six file tools page and never evict."""

    tools: dict[Annotated[str, AfterValidator(_evicting_tool)], EvictionSizes] = Field(
        default_factory=dict, max_length=1000
    )

    def sizes(self, tool: str) -> EvictionSizes:
        return self.tools.get(tool, self)


class NetworkSection(Section):
    """What the connections of one sandbox may use. Seconds are wall time; unset means that bytes are not limited."""

    connections: int = Field(100, ge=1, le=10_000, description="Connections at once.")
    connections_per_minute: int = Field(
        600, ge=1, le=1_000_000, description="New connections in a minute, refused ones too."
    )
    waiting: int = Field(8, ge=0, le=1000, description="Connections that may wait for an approval at once.")
    wait_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="How long a connection waits for an approval.",
    )
    connect_s: float = Field(
        10.0,
        gt=0,
        le=300,
        allow_inf_nan=False,
        description="How long finding and dialling a host may each take.",
    )
    idle_s: float = Field(
        300.0, gt=0, le=86_400, allow_inf_nan=False, description="A connection without a byte for so long is closed."
    )
    total_s: float = Field(
        3600.0, gt=0, le=604_800, allow_inf_nan=False, description="A connection that is open for so long is closed."
    )
    bytes_up: int | None = Field(None, ge=1, le=2**53, description="Bytes that one connection may send.")
    bytes_down: int | None = Field(None, ge=1, le=2**53, description="Bytes that one connection may receive.")
