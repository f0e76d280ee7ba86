"""A record of the audit, and how its digest is computed. docs/audit.md shows the same in ten lines for others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

START_DIGEST = "0" * 64
"""What the first record of a chain has before it."""

_NOT_TOLD = frozenset({"previous_digest", "digest"})


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
        """Return the digest that the record must have."""
        return record_digest(asdict(self), self.previous_digest)

    def line(self) -> str:
        """Return the record as a line of an export, without the line's end."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Return the record of an export's line; ValueError where it is none."""
        fields: Any = json.loads(line)
        if not isinstance(fields, dict) or fields.keys() != cls.__dataclass_fields__.keys():
            raise ValueError("not a record of the audit: its fields are others")
        for name, value in fields.items():
            wanted = int if cls.__dataclass_fields__[name].type == "int" else str
            if type(value) is not wanted:
                raise ValueError(f"not a record of the audit: {name} is no {wanted.__name__}")
        return cls(**fields)


COLUMNS = tuple(AuditRecord.__dataclass_fields__)


def record_digest(row: Mapping[str, object], previous: str) -> str:
    """Return the digest of a record: over the one before it and the record's fields as canonical JSON."""
    told = {name: value for name, value in row.items() if name not in _NOT_TOLD}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{canonical}".encode()).hexdigest()
