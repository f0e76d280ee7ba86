"""`airlock serve`: what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli.main import app


def test_a_ready_file_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert CliRunner().invoke(app, ["init", str(home)]).exit_code == 0
    (home / "state").rename(tmp_path / "state-before")
    serve = ("serve", "--config", str(home / "airlock.yaml"), "--listen", "127.0.0.1:0", "--json")
    ended = CliRunner().invoke(app, [*serve, "--ready-file", str(tmp_path / "none" / "ready")])
    assert ended.exit_code == 2
    assert "--ready-file" in json.loads(ended.stdout.splitlines()[-1])["error"]
    assert not (home / "state").exists()
