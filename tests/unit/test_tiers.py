"""The lists of tests/tiers.py name what there is."""

from pathlib import Path

from tests.tiers import BEYOND, CORE, INTEGRATION, LONG, is_left_out_whole

TESTS = Path(__file__).parents[1]


def test_the_files_are_there() -> None:
    files = [*(INTEGRATION + name for name in CORE), *BEYOND]
    assert [name for name in files if not (TESTS.parent / name).is_file()] == []


def test_the_long_tests_are_there_in_files_that_are_not_left_out_whole() -> None:
    files = (path for path in TESTS.rglob("test_*.py") if not is_left_out_whole(str(path.relative_to(TESTS.parent))))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in LONG if f"def {name.partition('[')[0]}(" not in text] == []
