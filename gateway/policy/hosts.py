"""Host patterns: `pypi.org`, `pypi.org:443`, `*.example.com` for every name below it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_HOST = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


@dataclass(frozen=True)
class HostPattern:
    """A compiled pattern; `port` is None for every port."""

    name: str
    below: bool
    port: int | None


@lru_cache(maxsize=4096)
def compile_host(text: str) -> HostPattern:
    """Compile a host pattern. Raises ValueError that says what is wrong and what is allowed."""
    name, colon, port = text.partition(":")
    if not _HOST.fullmatch(name) or (colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise ValueError(f"{text!r} is no host; write pypi.org, pypi.org:443 or *.example.com, in small letters")
    return HostPattern(name.removeprefix("*."), name.startswith("*."), int(port) if port else None)
