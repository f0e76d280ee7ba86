"""`airlock sandbox snapshots --delete`: nothing is removed for good without confirmation."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from gateway.cli.main import app

DELETE = ["sandbox", "snapshots", "--delete", "snap_1", "--address", "127.0.0.1:1"]


def test_a_program_that_removes_a_snapshot_says_yes_first() -> None:
    ended = CliRunner().invoke(app, [*DELETE, "--json"])
    assert ended.exit_code == 2
    assert "--yes" in json.loads(ended.stdout)["error"]


def test_a_person_who_does_not_confirm_removes_no_snapshot() -> None:
    ended = CliRunner().invoke(app, DELETE, input="n\n")
    assert ended.exit_code == 1
    assert "Delete snapshot snap_1?" in ended.output
    confirmed = CliRunner().invoke(app, DELETE, input="y\n")
    assert confirmed.exit_code == 3, "there is no gateway"
