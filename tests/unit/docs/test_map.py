"""ARCHITECTURE.md is a map of the code: every package is on it, in its layer, and nothing that does not exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TABLES = ("gateway", "sandbox", "sandbox/daemon", "agent", "airlock")
_ELSEWHERE = {"airlock": "clients/python/airlock"}
_MODULE_MAPS = (
    "agent/models",
    "gateway/sandboxes",
    "gateway/snapshots",
    "gateway/storage",
    "sandbox/daemon",
    "sandbox/engines/docker",
    "sandbox/engines/local",
    "sandbox/tls",
)
_CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]


def section(title: str) -> str:
    """Return what follows a heading of the page, up to the next one."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def mapped(folder: str) -> list[tuple[str, int]]:
    """Return the packages and modules in the table of a folder, each with its layer."""
    rows = re.findall(r"^\| (\d+) \| (`[^|]+`) \| \S", section(folder), re.MULTILINE)
    return [(name, int(layer)) for layer, names in rows for name in re.findall(r"`([^`]+)`", names)]


def there(folder: str) -> set[str]:
    """Return the packages of a folder as `name/`, and its modules as `name.py`."""
    place = ROOT / _ELSEWHERE.get(folder, folder)
    packages = {f"{package.parent.name}/" for package in place.glob("*/__init__.py")}
    return packages | {module.name for module in place.glob("*.py")} - {"__init__.py"}


def layers(folder: str) -> dict[str, int]:
    """Return the layer of each package and module by the import-linter contract; the lowest layer is 1."""
    contract = next(one for one in _CONTRACTS if one.get("containers") == [folder.replace("/", ".")])
    lowest_first = enumerate(reversed(contract["layers"]), start=1)
    return {name.strip(): layer for layer, names in lowest_first for name in names.split("|")}


@pytest.mark.parametrize("folder", TABLES)
def test_the_map_has_every_package_once_and_nothing_that_does_not_exist(folder: str) -> None:
    assert sorted(name for name, _ in mapped(folder)) == sorted(there(folder))


@pytest.mark.parametrize("folder", TABLES)
def test_the_map_has_each_package_in_the_layer_that_its_contract_gives_it(folder: str) -> None:
    assert {re.sub(r"/$|\.py$", "", name): layer for name, layer in mapped(folder)} == layers(folder)


def test_the_map_names_every_package_inside_another() -> None:
    packages = {
        f"{package.parent.relative_to(ROOT)}/"
        for top in ("gateway", "sandbox", "agent")
        for package in (ROOT / top).glob("*/*/**/__init__.py")
        if ROOT / "sandbox/daemon" not in package.parents
    }
    named = section("Nested packages and other directories")
    assert set(re.findall(r"`((?:gateway|sandbox|agent)/[\w/]+/)`", named)) == packages


def test_each_file_in_the_attack_table_exists() -> None:
    page = (ROOT / "docs/threats.md").read_text(encoding="utf-8")
    files = [file for row in re.findall(r"^\|.*\| (`.*`) \|$", page, re.MULTILINE) for file in row[1:-1].split("`, `")]
    assert files
    assert [file for file in files if not (ROOT / "sandbox" / file).is_file()] == []


@pytest.mark.parametrize("package", _MODULE_MAPS)
def test_a_package_whose_docstring_is_a_map_lists_all_of_its_modules(package: str) -> None:
    text = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
    lines = re.findall(r"^    ((?:\w+, )*\w+)  ", text, re.MULTILINE)
    assert {name for line in lines for name in line.split(", ")} == {
        module.stem for module in (ROOT / package).glob("*.py")
    } - {"__init__"}
