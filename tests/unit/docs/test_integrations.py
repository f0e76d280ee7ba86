"""docs/integrations.md and the locks of frameworks agree with the list of frameworks."""

import re
import tomllib

import pytest

from tests.frameworks.frameworks import FRAMEWORKS, ROOT, Framework

PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
LOCKS = ROOT / "deploy" / "frameworks"


def test_each_framework_has_a_lock_and_tests_and_nothing_else_has() -> None:
    names = {framework.name for framework in FRAMEWORKS}
    assert {path.stem for path in LOCKS.glob("*.lock")} == names
    assert {path.stem for path in LOCKS.glob("*.in")} == names | {"common"}
    assert {path.parent.name for path in (ROOT / "tests" / "frameworks").glob("*/test_*.py")} == names


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_a_framework_is_pinned_to_the_version_in_the_table_and_has_a_section_and_an_extra(framework: Framework) -> None:
    row = re.search(rf"^\| \[{framework.name}\]\(#{framework.name}\) \| (\S+) \|", PAGE, re.MULTILINE)
    assert row is not None
    pin = f"{framework.distribution}=={row[1]}"
    assert pin in (LOCKS / f"{framework.name}.in").read_text(encoding="utf-8").splitlines()
    assert f"\n{pin} " in (LOCKS / f"{framework.name}.lock").read_text(encoding="utf-8")
    assert f"\n## {framework.name}\n" in PAGE
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert framework.name in extras
