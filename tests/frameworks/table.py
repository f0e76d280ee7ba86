"""What the tests of the frameworks counted, and the table of docs/integrations.md that is made from it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.frameworks.frameworks import FRAMEWORKS, ROOT, Framework

RESULTS = ROOT / ".build" / "frameworks" / "results.json"
PAGE = ROOT / "docs" / "integrations.md"
_HEAD = "| framework | version | adapter | its own suite | our tests |\n|---|---|---|---|---|\n"
_BEGIN, _END = "<!-- made by deploy/run-tests frameworks --write -->\n", "<!-- end -->"


@dataclass(frozen=True)
class Counts:
    """How many tests did what."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    xfailed: int = 0

    def __str__(self) -> str:
        named = {"failed": self.failed, "skipped": self.skipped, "expected to fail": self.xfailed}
        others = [f"{count} {name}" for name, count in named.items() if count]
        return ", ".join([f"{self.passed} of {self.passed + sum(named.values())}", *others])


@dataclass(frozen=True)
class Result:
    """What a run of a framework's tests found."""

    version: str
    suite_version: str
    suite: Counts
    tests: Counts


def counted(framework: Framework, junit: Path) -> Result:
    """Return what pytest wrote; test_suite.py has the framework's own tests."""
    cases = list(ET.parse(junit).iter("testcase"))
    of_suite = [case for case in cases if "test_suite" in case.get("classname", "").split(".")]
    return Result(
        version=_version(framework, framework.distribution),
        suite_version=_version(framework, framework.suite_distribution) if framework.suite_distribution else "",
        suite=_counts(of_suite),
        tests=_counts(case for case in cases if case not in of_suite),
    )


def _version(framework: Framework, distribution: str) -> str:
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    done = subprocess.run([framework.python, "-c", code, distribution], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _counts(cases: Iterable[ET.Element]) -> Counts:
    counts = Counter(_outcome(case) for case in cases)
    return Counts(**counts)


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"


def store(results: Mapping[str, Result]) -> None:
    """Write the results of this run beside those that earlier runs had of other frameworks."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    stored.update({name: asdict(result) for name, result in results.items()})
    RESULTS.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def drift(results: Mapping[str, Result]) -> list[str]:
    """Return which frameworks have another row in the page than these results make."""
    rows = _rows()
    return [name for name, result in results.items() if rows.get(name) != _row(name, result)]


def write(results: Mapping[str, Result]) -> None:
    """Write the rows of these results into the page, and leave the others as they are."""
    rows = _rows() | {name: _row(name, result) for name, result in results.items()}
    known = [rows[framework.name] for framework in FRAMEWORKS if framework.name in rows]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n{_HEAD}{''.join(known)}\n{_END}{after}", encoding="utf-8")


def _rows() -> dict[str, str]:
    """Return the rows of the page by the name in their first column."""
    table = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0].removeprefix(f"\n{_HEAD}")
    lines = (line for line in table.splitlines(keepends=True) if line.startswith("| "))
    return {line[2:].partition("](")[0].removeprefix("["): line for line in lines}


def _row(name: str, result: Result) -> str:
    framework = next(one for one in FRAMEWORKS if one.name == name)
    suite = f"`{framework.suite}` of {framework.suite_distribution} {result.suite_version}: {result.suite}"
    cells = (
        f"[{name}](#{name})",
        result.version,
        f"[{framework.adapter}](../gateway/integrations/{framework.adapter})",
        suite if framework.suite else "none",
        str(result.tests),
    )
    return f"| {' | '.join(cells)} |\n"
