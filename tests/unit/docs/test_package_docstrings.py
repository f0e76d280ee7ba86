"""The docstring of each package says what it is for, what it may import and where to start, and says it truly."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.docs.test_map import ROOT, layers

_PACKAGES = [
    package.parent.relative_to(ROOT)
    for top in ("agent", "gateway", "sandbox", "clients/python/airlock")
    for package in sorted((ROOT / top).rglob("__init__.py"))
    if not {"v1", "envd"} & {*package.parts}
]


def docstring(package: Path) -> str:
    found = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
    return " ".join((found or "").split())


@pytest.mark.parametrize("package", _PACKAGES, ids=str)
def test_it_says_where_to_start_and_what_the_package_may_import(package: Path) -> None:
    text = docstring(package)
    start = re.search(r"Start at `([\w/]+\.py)`", text)
    assert start is not None
    assert (ROOT / package / start[1]).is_file()
    assert re.search(r"\bImports \w", text)


@pytest.mark.parametrize("package", [one for one in _PACKAGES if "layers below" in docstring(one)], ids=str)
def test_the_layer_that_it_names_is_the_one_of_the_contract(package: Path) -> None:
    named = re.search(r"Imports (?:[\w.]+ and )?(\w+) layers below (\d+)", docstring(package))
    assert named is not None
    folder = {"daemon": "sandbox/daemon"}.get(named[1], named[1])
    assert int(named[2]) == layers(folder)[package.relative_to(folder).parts[0]]


@pytest.mark.parametrize("package", [one for one in _PACKAGES if len(one.parts) > 1], ids=str)
def test_it_names_exactly_the_other_roots_that_the_package_imports(package: Path) -> None:
    imported = {
        module.split(".")[0]
        for path in (ROOT / package).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for module in modules(node)
    }
    others = {"agent", "airlock", "gateway", "sandbox"} - {*package.parts}
    sentence = re.search(r"Imports .*?\.(?= |$)", docstring(package))
    assert sentence is not None
    assert {root for root in others if re.search(rf"\b{root}\b", sentence[0])} == imported & others


def modules(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [name.name for name in node.names] if isinstance(node, ast.Import) else []
