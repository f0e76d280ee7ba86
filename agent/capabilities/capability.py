"""A capability: a small bundle of hooks and tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.hooks.hook import Hook
from agent.tools.tool import Tool


@dataclass(frozen=True)
class Capability:
    """A named bundle of hooks and tools that belong together."""

    name: str
    hooks: Sequence[Hook] = ()
    tools: Sequence[Tool] = ()
