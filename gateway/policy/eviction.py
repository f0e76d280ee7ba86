"""The section of the policy file on large results, which stay in the sandbox."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gateway.policy.fields import FILE_TOOLS, Section

_TOOL_NAME = re.compile(r"[A-Za-z0-9._/-]{1,128}")

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
        raise ValueError(f"{tool[:128]!r} is not the name of a tool: 1 to 128 letters, digits, '.', '_', '-' or '/'")
    return tool


class EvictionSection(EvictionSizes):
    """Sizes for all tools, and others for the ones named in `tools`. The six file tools page and never evict."""

    tools: dict[Annotated[str, AfterValidator(_evicting_tool)], EvictionSizes] = Field(
        default_factory=dict, max_length=1000
    )

    def sizes(self, tool: str) -> EvictionSizes:
        return self.tools.get(tool, self)
