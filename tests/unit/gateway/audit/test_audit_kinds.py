"""The kinds of audit records are listed whole, and alike, where readers look for them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
# As the code names a kind: what it makes an entry of, or what stands in for the tools of a call.
_NAMED = re.compile(r'\b(?:audit_kind = |kind=|run_changed\(connection, |_tell\(connection, )"([a-z0-9_]+)"')
_WORD = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


def _of_the_proto() -> set[str]:
    text = (ROOT / "proto" / "gateway" / "v1" / "audit_service.proto").read_text(encoding="utf-8")
    comment = text[text.index("What happened: ") + len("What happened: ") : text.index("string kind = 3")]
    listed = re.sub(r"\(.*?\)", "", comment.replace("//", " "), flags=re.DOTALL)
    return set(_WORD.findall(listed))


def _of_the_docs() -> set[str]:
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| `kind` |"))
    return set(re.findall(r"`([a-z0-9_]+)`", row)) - {"kind"}


def test_the_contract_and_the_page_list_the_same_kinds() -> None:
    assert _of_the_proto() == _of_the_docs()


def test_what_the_code_writes_is_listed_and_what_is_listed_is_written() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for path in [*(ROOT / "gateway").rglob("*.py"), ROOT / "clients" / "python" / "airlock" / "audit_chain.py"]
        if path.parent.name != "v1"
    ]
    named = {kind for source in sources for kind in _NAMED.findall(source)}
    assert named <= _of_the_docs()
    quoted = {kind for kind in _of_the_docs() if any(f'"{kind}"' in source for source in sources)}
    assert quoted == _of_the_docs()
