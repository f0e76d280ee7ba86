"""The last line of an export, which marks it as complete and states where it ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from gateway.audit_chain.chain import CHANGED, CUT_OFF, MISSING, ChainReport

_MARK = "complete"


@dataclass(frozen=True)
class ExportEnd:
    """The first and last record of a complete export; zeros and "" if it has none."""

    first_sequence: int = 0
    last_sequence: int = 0
    last_digest: str = ""

    def line(self) -> str:
        """Return the last line of the export, without its line end."""
        return json.dumps({_MARK: True, **asdict(self)})

    @classmethod
    def of_line(cls, line: str) -> Self | None:
        """Parse the last line of an export; None for another line, ValueError for a malformed one."""
        if _MARK not in line:
            return None
        fields: Any = json.loads(line)
        if not isinstance(fields, dict) or fields.pop(_MARK, None) is not True:
            return None
        types = {name: type(value) for name, value in fields.items()}
        if types != {"first_sequence": int, "last_sequence": int, "last_digest": str}:
            raise ValueError("not the last line of an export: it has other fields")
        return cls(**fields)


def compared(report: ChainReport, end: ExportEnd | None) -> ChainReport:
    """Return the report on an export's records, compared with the export's last line; None if that is missing."""
    if not report.whole:
        return report
    if not report.records:
        return replace(report, problem="nothing to verify: it has no record")
    if end is None:
        problem = f"{CUT_OFF}: the last line that marks the export as complete is missing"
        return replace(report, broken_sequence=report.last_sequence + 1, problem=problem)
    if report.last_sequence < end.last_sequence:
        problem = f"{CUT_OFF}: the export continued to record {end.last_sequence}"
        return replace(report, broken_sequence=report.last_sequence + 1, problem=problem)
    if report.first_sequence > end.first_sequence:
        problem = f"{MISSING}: the export started with record {end.first_sequence}"
        return replace(report, broken_sequence=end.first_sequence, problem=problem)
    if ExportEnd(report.first_sequence, report.last_sequence, report.last_digest) != end:
        problem = f"{CHANGED}: the export's last line states another end"
        return replace(report, broken_sequence=report.last_sequence, problem=problem)
    return report
