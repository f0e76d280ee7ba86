"""ARCHITECTURE.md is a map of the whole gateway: nothing is left out of it, and nothing is on it that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GATEWAY = ROOT / "gateway"
_MAPPED = (
    "gateway/sandboxes",
    "gateway/snapshots",
    "gateway/storage",
    "sandbox/daemon",
    "sandbox/engines/docker",
    "sandbox/engines/local",
)
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
_GENERATED = {"v1"}


def rows_after(line: str) -> str:
    """Return the table that follows a line of the page."""
    return PAGE[PAGE.index(line) :].split("|\n\n")[0].split("|\n- ")[0]


def test_each_room_of_the_gateway_is_on_the_map() -> None:
    rooms = {room.parent.name for room in GATEWAY.glob("*/__init__.py")} - _GENERATED
    assert set(re.findall(r"^  \| `gateway/(\w+)/` \|", PAGE, re.MULTILINE)) == rooms


def test_each_module_beside_the_rooms_is_on_the_map() -> None:
    modules = {module.name for module in GATEWAY.glob("*.py")} - {"__init__.py", "server.py"}
    assert set(re.findall(r"`(\w+\.py)`", rows_after("Beside them, in `gateway/`"))) == modules


@pytest.mark.parametrize("room", _MAPPED)
def test_a_room_whose_package_is_its_map_has_all_of_its_modules_there(room: str) -> None:
    package = (ROOT / room / "__init__.py").read_text(encoding="utf-8")
    lines = re.findall(r"^    ((?:\w+, )*\w+)  ", package, re.MULTILINE)
    assert {name for line in lines for name in line.split(", ")} == {
        module.stem for module in (ROOT / room).glob("*.py")
    } - {"__init__"}
