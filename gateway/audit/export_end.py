"""The last line of an export, which marks it as complete and states where it ends."""

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
    wrong: tuple[int, str] | None = None
    if end is None:
        wrong = report.last_sequence + 1, f"{CUT_OFF}: the last line that marks the export as complete is missing"
    elif report.last_sequence < end.last_sequence:
        wrong = report.last_sequence + 1, f"{CUT_OFF}: the export continued to record {end.last_sequence}"
    elif report.first_sequence > end.first_sequence:
        wrong = end.first_sequence, f"{MISSING}: the export started with record {end.first_sequence}"
    elif ExportEnd(report.first_sequence, report.last_sequence, report.last_digest) != end:
        wrong = report.last_sequence, f"{CHANGED}: the export's last line states another end"
    return report if wrong is None else replace(report, broken_sequence=wrong[0], problem=wrong[1])
