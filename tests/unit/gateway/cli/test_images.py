"""`airlock images build` where it cannot build: one line says what is missing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import gateway
from tests.gateway_process import airlock, airlock_process


def test_without_the_command_docker_it_says_so(tmp_path: Path) -> None:
    done = airlock_process("images", "build", "runtime", env={"PATH": str(tmp_path)}, check=False)
    assert done.returncode != 0
    assert "needs the command `docker`" in done.stderr
    assert "the images were not built" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    done = airlock_process("images", "build", env={"DOCKER_HOST": f"unix://{tmp_path}/none"}, check=False)
    assert done.returncode != 0
    assert "no Docker engine answers" in done.stderr


def test_an_installation_without_its_files_is_to_be_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.files", files)
    monkeypatch.setattr(gateway, "__file__", str(tmp_path / "gateway" / "__init__.py"))
    done = airlock("images", "build", check=False)
    assert done.returncode != 0
    assert "install airlock-agent-gateway again" in done.stderr
