"""An audit record and its digest. docs/audit.md shows the computation in ten lines for others."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

START_DIGEST = "0" * 64
"""The previous digest of the first record of a chain."""

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
