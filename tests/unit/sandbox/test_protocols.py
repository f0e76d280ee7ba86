"""agent and sandbox do not import each other, so only a type checker can say that they fit."""

from __future__ import annotations

from pathlib import Path

from mypy import api

REPOSITORY = Path(__file__).parents[3]


def test_file_systems_shell_sandbox_and_engine_satisfy_their_protocols(tmp_path: Path) -> None:
    file = Path(__file__).with_name("satisfies.py")
    said, trouble, status = api.run(
        ["--strict", "--config-file", str(REPOSITORY / "pyproject.toml"), "--cache-dir", str(tmp_path), str(file)]
    )
    assert status == 0, said + trouble
