"""`airlock thread`: nothing is removed without confirmation."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from gateway.cli.main import app


def test_a_program_that_removes_a_thread_says_yes_first() -> None:
    ended = CliRunner().invoke(app, ["thread", "delete", "t1", "--address", "127.0.0.1:1", "--json"])
    assert ended.exit_code == 2
    assert "--yes" in json.loads(ended.stdout)["error"]


def test_a_person_who_does_not_confirm_removes_nothing() -> None:
    ended = CliRunner().invoke(app, ["thread", "delete", "t1", "--address", "127.0.0.1:1"], input="n\n")
    assert ended.exit_code == 1
    assert "Delete thread 't1'" in ended.stdout
