"""Context variables say who calls and until when; what is called is passed as arguments."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
KNOWN = {
    "clients/python/airlock/connection.py:AMBIENT",
    "gateway/credentials/caller.py:CALLER",
    "gateway/identity/principal.py:PRINCIPAL",
    "gateway/serving/edge.py:_DEADLINE_S",
    "gateway/support/current_tenant.py:CURRENT_TENANT",
    "gateway/telemetry/rpc.py:_CALL",
}


def test_there_are_no_context_variables_but_those_of_the_invariants_page() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for package in ("agent", "gateway", "sandbox", "clients/python/airlock")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"^(\w+).*= ContextVar\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == KNOWN
