"""What `airlock doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `mend` is empty when it is as it should be."""

    what: str
    state: Literal["ok", "warning", "failed"]
    detail: str
    mend: str = ""
