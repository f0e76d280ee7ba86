"""The lists of tests/tiers.py name what there is."""

from pathlib import Path

from tests.tiers import BEYOND, CORE, INTEGRATION, LONG

TESTS = Path(__file__).parents[1]


def test_the_files_are_there() -> None:
    files = [*(INTEGRATION + name for name in CORE), *BEYOND]
    assert [name for name in files if not (TESTS.parent / name).is_file()] == []


def test_the_long_tests_are_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert [name for name in LONG if f"def {name.partition('[')[0]}(" not in text] == []
