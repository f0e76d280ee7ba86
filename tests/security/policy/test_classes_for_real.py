"""Lines that hide what they do, by class: each is judged, and each is run where nothing forbids it."""

from __future__ import annotations

import pytest

from tests.security.policy.classes import CLASSES
from tests.security.policy.fuzz_lines import findings
from tests.security.policy.real_effects import forbidden, run_for_real

LINES = [line for lines in CLASSES.values() for line in lines]


@pytest.fixture(scope="module")
def effects() -> dict[str, tuple[set[str], str]]:
    """What each line did."""
    return dict(zip(LINES, run_for_real(LINES), strict=True))


@pytest.mark.parametrize("kind", CLASSES)
def test_no_line_that_breaks_a_rule_is_allowed(kind: str, effects: dict[str, tuple[set[str], str]]) -> None:
    harmless = {line: effects[line][1] for line in CLASSES[kind] if not effects[line][0]}
    assert harmless == {}, "these prove nothing"
    assert {line: found for line in CLASSES[kind] if (found := forbidden(line, effects[line][0]))} == {}


@pytest.mark.parametrize(
    "seed, count", [(101, 100), *(pytest.param(seed, 500, marks=pytest.mark.full) for seed in (102, 103))]
)
def test_no_generated_line_that_breaks_a_rule_is_allowed(seed: int, count: int) -> None:
    harmful, found = findings(seed, count)
    assert harmful > count / 20, "these prove nothing"
    assert found == []
