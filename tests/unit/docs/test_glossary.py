"""docs/glossary.md is sorted, has one line a term, and pages, code and names of tests use no word that it replaced."""

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
# The replaced words without another use here. In code this test looks in every identifier, docstring, comment and
# message. "held" and "tell" also have plain uses, and are left to the reader.
_REPLACED_IN_CODE = frozenset(
    [
        *("told", "untold", "nobody", "nobodys", "somebody", "whoever", "lent", "mend", "mends", "mended", "mending"),
        *("nursery", "newborn", "standin", "survivor", "survivors", "desk", "desks", "greeting"),
    ]
)
_WORD = re.compile(r"[Ss]tand-?[Ii]n(?![a-z])|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TEST_NAME = re.compile(r"def test_(\w+)")
# What must stay, and why.
_EXCLUDED = {
    "gateway/serving/listening.py": "alk_nobodys is a key in examples, which no gateway may accept",
}


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


def replaced_in(text: str) -> list[str]:
    """Return the replaced words among those that identifiers and sentences consist of."""
    words = (word.lower().replace("-", "") for word in _WORD.findall(text))
    return [word for word in words if word in _REPLACED_IN_CODE]


@pytest.mark.parametrize(
    "text, found",
    [
        ("is_told, ToldCall and _UNTOLD", ["told", "told", "untold"]),
        ("a StandIn and a stand-in, standing in what may stand in it", ["standin"] * 2),
        ("recommends what was silently amended at the desktop", []),
        ("nobody's, nobodys", ["nobody", "nobodys"]),
    ],
)
def test_replaced_words_are_found_in_identifiers_and_sentences(text: str, found: list[str]) -> None:
    assert replaced_in(text) == found


def beyond_exclusions(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the words by file, without the files that are excluded."""
    return {path: words for path, words in found.items() if words and not path.startswith(tuple(_EXCLUDED))}


def test_code_uses_no_word_that_was_replaced() -> None:
    tops = ("agent", "gateway", "sandbox", "clients/python/airlock")
    modules = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    files = [path for path in modules if "_pb2" not in path.name] + sorted((ROOT / "proto").rglob("*.proto"))
    assert len(files) > 300
    found = {str(path.relative_to(ROOT)): replaced_in(path.read_text(encoding="utf-8")) for path in files}
    assert beyond_exclusions(found) == {}


def test_the_names_of_tests_use_no_word_that_was_replaced() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    names = {str(path.relative_to(ROOT)): _TEST_NAME.findall(path.read_text(encoding="utf-8")) for path in files}
    assert beyond_exclusions({path: replaced_in(f"{path} {' '.join(found)}") for path, found in names.items()}) == {}
