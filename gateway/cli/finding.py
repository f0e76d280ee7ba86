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

    @classmethod
    def of(cls, what: str, ok: bool, detail: str, mend: str, otherwise: Literal["warning", "failed"]) -> Finding:
        """Return what a check found; `mend` says how to repair what is not ok."""
        return cls(what, "ok" if ok else otherwise, detail, "" if ok else mend)
