"""docs/glossary.md is sorted, has one line a term, and pages use its words instead of the ones that it replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
_ENTRY = re.compile(r"- \*\*([^*]+)\*\*: [^.].*\.")
# Labels and file names of the program, such as `airlock.held`, may contain a replaced word.
_REPLACED = re.compile(
    r"(?<![\w./-])(told|nobody|somebody|whoever|lent|lend|mends?|mended|mending|held|newborn|nursery|stand-in|spares?)"
    r"(?![\w-])",
    re.IGNORECASE,
)


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_no_word_that_the_glossary_replaced(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    assert [(number, word) for number, line in lines for word in _REPLACED.findall(line)] == []
