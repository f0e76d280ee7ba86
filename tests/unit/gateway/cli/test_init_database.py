"""`airlock init` with a database that is not SQLite: its keys are there, and its password stands in no file of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config.config import Config


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_it_names_the_database_and_makes_its_keys_there(tmp_path: Path, empty_url: str) -> None:
    password = tmp_path / "password"
    password.write_text("a secret\n", encoding="utf-8")
    home = tmp_path / "home"
    options = ["--database-url", empty_url, "--database-password-file", str(password)]
    made = CliRunner().invoke(app, ["init", str(home), *options, "--json"])
    assert made.exit_code == 0, made.output
    config = Config.load(home / "airlock.yaml")
    assert config.database_url == empty_url
    assert "a%20secret" in config.resolved_database_url()
    assert "a secret" not in (home / "airlock.yaml").read_text(encoding="utf-8")
    listed = CliRunner().invoke(app, ["key", "list", "--config", str(home / "airlock.yaml"), "--json"])
    assert listed.exit_code == 0
    assert "services" in listed.stdout
    assert not list(home.glob("**/airlock.db"))
