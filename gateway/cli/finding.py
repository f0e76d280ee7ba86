"""Finding: the result of one check of `airlock doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of a check; `fix` says how to fix a problem."""

    what: str
    state: Literal["ok", "warning", "failed"]
    detail: str
    fix: str = ""

    @classmethod
    def of(cls, what: str, ok: bool, detail: str, fix: str, otherwise: Literal["warning", "failed"]) -> Finding:
        """Return the finding of a check, whose state is `otherwise` unless it is `ok`."""
        return cls(what, "ok" if ok else otherwise, detail, "" if ok else fix)
