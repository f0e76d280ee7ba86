"""The last line of an export: it says where the export ends, so that one that was cut off is found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from gateway.audit_chain.chain import CHANGED, CUT_OFF, MISSING, ChainReport

_MARK = "complete"


@dataclass(frozen=True)
class ExportEnd:
    """The first and the last record of a complete export; zeros and "" where it has none."""

    first_sequence: int = 0
    last_sequence: int = 0
    last_digest: str = ""

    def line(self) -> str:
        """Return the export's last line, without the line's end."""
        return json.dumps({_MARK: True, **asdict(self)})

    @classmethod
    def of_line(cls, line: str) -> Self | None:
        """Return the end that a line tells of, None for a line that is another; ValueError for a bad one."""
        if _MARK not in line:
            return None
        fields: Any = json.loads(line)
        if not isinstance(fields, dict) or fields.pop(_MARK, None) is not True:
            return None
        found = {name: type(value) for name, value in fields.items()}
        if found != {"first_sequence": int, "last_sequence": int, "last_digest": str}:
            raise ValueError("not the last line of an export: its fields are others")
        return cls(**fields)


def compared(report: ChainReport, end: ExportEnd | None) -> ChainReport:
    """Return what was found of an export's records, once it is compared with the export's end; None: there was none."""
    if not report.whole:
        return report
    if not report.records:
        return replace(report, problem="nothing to verify: there is no record in it")
    if end is None:
        problem = f"{CUT_OFF}: no last line says that the export is complete"
        return replace(report, broken_sequence=report.last_sequence + 1, problem=problem)
    if report.last_sequence < end.last_sequence:
        problem = f"{CUT_OFF}: the export went on to record {end.last_sequence}"
        return replace(report, broken_sequence=report.last_sequence + 1, problem=problem)
    if report.first_sequence > end.first_sequence:
        problem = f"{MISSING}: the export began with record {end.first_sequence}"
        return replace(report, broken_sequence=end.first_sequence, problem=problem)
    if ExportEnd(report.first_sequence, report.last_sequence, report.last_digest) != end:
        problem = f"{CHANGED}: the export's last line tells of another end"
        return replace(report, broken_sequence=report.last_sequence, problem=problem)
    return report
