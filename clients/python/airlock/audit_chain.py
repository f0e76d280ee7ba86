"""Audit records, their digests, and the verification of a chain: its links are computed again in constant memory.

docs/audit.md shows the computation of a digest in ten lines for others. Verification proves that between two known
digests nothing was changed, removed, added or moved. Write access to the database is enough to write a whole new chain;
only a digest that was noted elsewhere reveals that.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Self

START_DIGEST = "0" * 64
"""The previous digest of the first record of a chain."""

CHANGED, MISSING, REORDERED, CUT_OFF = "changed", "missing", "reordered", "cut off"
_MARK = "complete"
PRUNED = "audit_pruned"
"""The kind of the record that retention writes when it prunes; details: first_sequence and before_digest."""
_NOT_DIGESTED = frozenset({"previous_digest", "digest"})


@dataclass(frozen=True)
class AuditRecord:
    """One link of a tenant's chain, as gateway/v1/audit_service.proto describes it.

    `at_us` is UTC microseconds since 1970, `details` is the text of a JSON object, both digests are SHA-256 in hex.
    """

    tenant: str
    sequence: int
    at_us: int
    kind: str
    actor: str
    thread: str
    run_id: str
    call_id: str
    tool: str
    arguments_digest: str
    verdict: str
    rule: str
    policy_version: str
    outcome: str
    size_bytes: int
    duration_us: int
    details: str
    previous_digest: str
    digest: str

    def computed_digest(self) -> str:
        return record_digest(asdict(self), self.previous_digest)

    def line(self) -> str:
        """Return the record as a line of an export, without its line end."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Parse a line of an export; ValueError if it is not a record."""
        fields: Any = json.loads(line)
        if not isinstance(fields, dict) or fields.keys() != cls.__dataclass_fields__.keys():
            raise ValueError("not a record of the audit: it has other fields")
        for name, value in fields.items():
            wanted: Any = cls.__dataclass_fields__[name].type
            if type(value) is not wanted:
                raise ValueError(f"not a record of the audit: {name} is not of type {wanted.__name__}")
        return cls(**fields)


COLUMNS = tuple(AuditRecord.__dataclass_fields__)


def record_digest(row: Mapping[str, object], previous: str) -> str:
    """Return the digest of a record: over the previous digest and the record's fields as canonical JSON."""
    fields = {name: value for name, value in row.items() if name not in _NOT_DIGESTED}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{canonical}".encode()).hexdigest()


@dataclass(frozen=True)
class ChainHead:
    """Where a chain ends according to the database, and where it starts since older records were pruned."""

    sequence: int
    digest: str
    first_sequence: int
    before_digest: str


Known = Mapping[int, str]
"""Digests that were noted elsewhere, by the sequence number of their record."""
NOTHING_KNOWN: Known = MappingProxyType({})


@dataclass(frozen=True)
class ChainReport:
    """The result. `problem` starts with changed, missing, reordered or cut off; it is empty for a whole chain."""

    records: int
    first_sequence: int
    last_sequence: int
    last_digest: str
    broken_sequence: int = 0
    problem: str = ""

    @property
    def whole(self) -> bool:
        return not self.problem


class ChainCheck:
    """Takes the records of a chain in order of sequence number and keeps the first problem."""

    def __init__(self, head: ChainHead | None, known: Known = NOTHING_KNOWN, *, part: bool = False) -> None:
        """`part`: the records are an excerpt without gaps, such as an export, with no head to compare to."""
        self._head, self._known, self._part = head, known, part
        self._tenant: str | None = None
        self._records = self._first = self._last = self._broken = 0
        self._digest = self._problem = ""
        self._vouched = False
        if head is not None:
            self._last, self._digest = head.first_sequence - 1, head.before_digest
            self._vouched = head.first_sequence == 1 and head.before_digest == START_DIGEST
        elif not part:
            self._digest = START_DIGEST

    @property
    def broken(self) -> bool:
        return bool(self._problem)

    def take(self, record: AuditRecord) -> None:
        if self._problem:
            return
        if self._part and not self._records:
            self._tenant, self._last, self._digest = record.tenant, record.sequence - 1, record.previous_digest
            self._vouched = record.sequence > 1 or record.previous_digest == START_DIGEST
        self._records += 1
        self._first = self._first or record.sequence
        self._check(record)
        self._last, self._digest = record.sequence, record.digest
        self._vouched = self._vouched or self._vouches(record)

    def _check(self, record: AuditRecord) -> None:
        expected = self._last + 1
        if self._head is not None and record.sequence > self._head.sequence:
            self._wrong(record.sequence, f"{CHANGED}: the record is after the chain's end, which is {self._last}")
        elif record.sequence > expected:
            until = f" to {record.sequence - 1}" if record.sequence > expected + 1 else ""
            self._wrong(expected, f"{MISSING}: there is no record {expected}{until}")
        elif record.sequence < expected:
            self._wrong(record.sequence, f"{REORDERED}: the record comes after record {self._last}")
        elif record.previous_digest != self._digest:
            self._wrong(expected, f"{REORDERED}: the record does not follow the one before it")
        elif (self._tenant is not None and record.tenant != self._tenant) or record.computed_digest() != record.digest:
            self._wrong(expected, f"{CHANGED}: the record does not match its digest")
        elif self._known.get(record.sequence, record.digest) != record.digest:
            self._wrong(expected, f"{CHANGED}: another digest was noted; the chain was rewritten")

    def _vouches(self, record: AuditRecord) -> bool:
        """Whether this record covers the pruning that the head states."""
        if record.kind != PRUNED or self._head is None:
            return False
        details = json.loads(record.details)
        start = (self._head.first_sequence, self._head.before_digest)
        return (details.get("first_sequence"), details.get("before_digest")) == start

    def report(self) -> ChainReport:
        if not self._problem:
            self._check_end()
        return ChainReport(
            records=self._records,
            first_sequence=self._first,
            last_sequence=self._last if self._records else 0,
            last_digest=self._digest if self._records else START_DIGEST,
            broken_sequence=self._broken,
            problem=self._problem,
        )

    def _check_end(self) -> None:
        head = self._head
        if head is None and self._records and not self._part:
            self._wrong(self._last, f"{CUT_OFF}: the chain has no stored end")
        elif head is not None and self._last < head.sequence:
            self._wrong(self._last + 1, f"{CUT_OFF}: the chain continued to record {head.sequence}")
        elif head is not None and self._digest != head.digest:
            self._wrong(self._last, f"{CHANGED}: the chain's end has another digest")
        elif head is not None and not self._vouched:
            self._wrong(head.first_sequence, f"{MISSING}: older records are gone without a matching {PRUNED} record")
        elif self._part and self._records and not self._vouched:
            self._wrong(self._first, f"{CHANGED}: the first record does not start a chain")
        elif (noted := max(self._known, default=0)) > self._last:
            self._wrong(self._last + 1, f"{CUT_OFF}: record {noted} was noted and is not there")

    def _wrong(self, sequence: int, problem: str) -> None:
        self._broken, self._problem = sequence, problem


@dataclass(frozen=True)
class ExportEnd:
    """The last line of an export, which marks it as complete: its first and last record; zeros and "" without any."""

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
