"""docs/glossary.md is sorted and has one line for each term."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
_ENTRY = re.compile(r"- \*\*([^*]+)\*\*: [^.].*\.")


def entries() -> list[str]:
    page = GLOSSARY.read_text(encoding="utf-8")
    return [line for line in page.split("\n\n", 2)[2].splitlines() if line]


def test_the_glossary_has_one_line_for_each_term() -> None:
    assert [line for line in entries() if not _ENTRY.fullmatch(line)] == []


def test_the_glossary_is_sorted_and_has_each_term_once() -> None:
    terms = [line.split("**")[1] for line in entries()]
    assert terms == sorted(set(terms), key=str.lower)


def test_the_glossary_is_in_the_index() -> None:
    assert "](glossary.md)" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
