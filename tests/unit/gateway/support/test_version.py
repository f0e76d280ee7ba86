"""The version has one source, pyproject.toml, and everything that says it says the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import gateway
from tests.gateway_process import airlock


def test_the_package_and_the_command_line_say_the_version_of_the_project() -> None:
    project = tomllib.loads((Path(gateway.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert gateway.__version__ == project["project"]["version"]
    assert airlock("--version").stdout == f"airlock {gateway.__version__}\n"
