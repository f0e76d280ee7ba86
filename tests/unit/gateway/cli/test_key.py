"""`airlock key` on the database of a configuration, and what `airlock init` gives out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app


def _airlock(*arguments: str) -> tuple[int, str]:
    """Run the CLI in this process; return how it ended and what it printed."""
    ended = CliRunner().invoke(app, list(arguments))
    return ended.exit_code, ended.stdout


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_airlock("init", str(tmp_path / "home"), "--json")[1])
    return told


def _key(made: dict[str, Any], *arguments: str) -> Any:
    return json.loads(_airlock("key", *arguments, "--config", made["config"], "--json")[1])


def test_init_gives_a_key_for_services_one_for_approvers_and_one_for_operators(made: dict[str, Any]) -> None:
    listed = {key["shown"]: (key["tenant"], key["scopes"]) for key in _key(made, "list")}
    assert listed == {
        made["key"][:12]: ("default", ["run", "tool", "files"]),
        made["approver_key"][:12]: ("default", ["approve"]),
        made["operator_key"][:12]: ("", ["operate", "audit"]),
    }


def test_a_key_is_made_rotated_and_revoked_without_a_gateway(made: dict[str, Any]) -> None:
    first = _key(made, "create", "--scope", "tool", "--name", "ci", "--expires-in", "90d")
    assert (first["tenant"], first["scopes"], first["name"]) == ("default", ["tool"], "ci")
    second = _key(made, "rotate", first["id"], "--overlap", "1h")
    assert second["key"] != first["key"]
    assert second["scopes"] == ["tool"]
    assert _key(made, "revoke", second["id"])["revoked_at"]
    ended = {key["id"]: key for key in _key(made, "list", "--all")}
    assert ended[first["id"]]["replaced_by"] == second["id"]
    assert second["id"] not in {key["id"] for key in _key(made, "list")}


@pytest.mark.parametrize(
    "wrong, said",
    [
        (("create", "--scope", "operate"), "scope: operate given"),
        (("create", "--operator", "--scope", "run"), "scope: run given"),
        (("create", "--expires-in", "soon"), "--expires-in"),
        (("create", "--tenant", "nobody"), "nobody"),
        (("rotate", "key_none"), "no key"),
    ],
)
def test_what_cannot_be_is_said(made: dict[str, Any], wrong: tuple[str, ...], said: str) -> None:
    code, printed = _airlock("key", *wrong, "--config", made["config"], "--json")
    assert code != 0
    assert said in json.loads(printed)["error"]
