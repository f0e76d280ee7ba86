"""docs/client.md says of each call of the client that changes something whether it is tried again."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.client import Client

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
_READS = re.compile(
    r"(get|list|watch|tail|verify)_\w+|approvals?|audit|grants|keys|messages|policy(_changes)?|process(es|_output)"
    r"|sandbox_transitions|sandboxes|snapshots|tenants?|usage"
    r"|aclose"  # no call of the gateway
)


def test_each_call_that_changes_something_is_in_the_table() -> None:
    calls = {name for name in dir(Client) if not name.startswith("_")}
    (table,) = re.findall(r"^\| call \|.*?\n\n", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.strip().splitlines())))
    assert {call for call in calls if not _READS.fullmatch(call)} - named == set()
    assert named - calls == set()
