from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.serve import Serving, banner
from gateway.config.config import Config


@pytest.mark.parametrize(
    "engine, said",
    [
        ("memory", "memory: commands run unconfined on this machine"),
        ("docker", "Docker at DOCKER_HOST or the default socket"),
    ],
)
def test_the_banner_names_the_engine_that_runs_commands(tmp_path: Path, engine: str, said: str) -> None:
    path = tmp_path / "airlock.yaml"
    path.write_text(f"tenants: {{t: {{policy: managed}}}}\nsandbox: {{engine: {engine}}}\n", encoding="utf-8")
    lines = banner(Config.load(path), Serving("127.0.0.1:7777")).plain.splitlines()
    assert [line for line in lines if line.startswith("engine")] == [f"engine     {said}"]
