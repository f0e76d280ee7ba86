"""The lists of tests/tiers.py name what there is."""

from pathlib import Path

from tests.tiers import CORE, INTEGRATION, LONG

TESTS = Path(__file__).parents[1]


def test_the_integration_tests_that_every_change_must_pass_are_there() -> None:
    assert [name for name in CORE if not (TESTS.parent / INTEGRATION / name).is_file()] == []


def test_the_long_tests_are_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert [name for name in LONG if f"def {name.partition('[')[0]}(" not in text] == []
