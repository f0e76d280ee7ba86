"""A sandbox that an earlier process of the same gateway left running, until somebody asks for it or it goes idle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LeftSandbox:
    """Whose it is, in the digests of container_config.owner(): Docker is told no more, so no more is known."""

    id: str
    tenant: str
    thread: str
