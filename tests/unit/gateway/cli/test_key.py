"""`airlock key` on the database of a configuration, and what `airlock init` gives out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.errors import Unauthenticated


def _airlock(*arguments: str) -> tuple[int, str]:
    """Run the CLI in this process; return how it ended and what it printed."""
    ended = CliRunner().invoke(app, list(arguments))
    return ended.exit_code, ended.stdout


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    reported: dict[str, Any] = json.loads(_airlock("init", str(tmp_path / "home"), "--json")[1])
    return reported


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
        (("rotate", "key_none"), "not found"),
    ],
)
def test_what_cannot_be_is_said(made: dict[str, Any], wrong: tuple[str, ...], said: str) -> None:
    code, printed = _airlock("key", *wrong, "--config", made["config"], "--json")
    assert code != 0
    assert said in json.loads(printed)["error"]


def test_a_name_with_brackets_is_shown_as_it_is(made: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _key(made, "create", "--name", "[/evil] [link=http://x]y[/link]")
    code, reported = _airlock("key", "list", "--config", made["config"])
    assert code == 0
    assert "[/evil]" in reported.replace("\n", " ")


@pytest.mark.parametrize("columns", ["60", "80", "120", "200"])
def test_no_column_of_a_key_is_left_out_in_a_narrow_terminal(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    key = _key(made, "create", "--name", "nightly", "--expires-in", "90d")
    code, reported = _airlock("key", "list", "--config", made["config"])
    assert code == 0
    assert max(len(line) for line in reported.splitlines()) <= int(columns)
    for shown in (key["id"], key["shown"], "nightly", "default", key["created_at"][:10], key["expires_at"][:10]):
        assert shown in reported


def test_keys_are_listed_by_scope_and_by_state(made: dict[str, Any]) -> None:
    key = _key(made, "create", "--scope", "audit")
    _key(made, "revoke", key["id"])

    def listed(*which: str) -> list[str]:
        code, reported = _airlock("key", "list", *which, "--config", made["config"], "--json")
        assert code == 0
        return [one["id"] for one in json.loads(reported)]

    assert listed("--scope", "audit", "--state", "revoked") == [key["id"]]
    assert key["id"] not in listed("--scope", "audit")
    assert listed("--state", "expired") == []
    for wrong in (("--scope", "root"), ("--state", "gone")):
        assert _airlock("key", "list", *wrong, "--config", made["config"], "--json")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        ("key", "list"),
        ("key", "create"),
        ("policy", "current", "--operator-layer"),
        ("policy", "history", "--tenant", "default"),
        ("policy", "rollback", "--tenant", "default"),
        ("policy", "apply", "p.yaml", "--tenant", "default"),
    ],
)
def test_the_environments_address_is_asked_where_no_configuration_is_given_or_here(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    asked: list[str] = []

    class Asked:
        def __init__(self, address: str, key: str) -> None:
            asked.append(address)
            raise Unauthenticated(f"no key {key}")

    monkeypatch.setattr("gateway.client.Client", Asked)
    monkeypatch.setenv("AIRLOCK_ADDRESS", "of-the-environment:1")
    (tmp_path / "p.yaml").write_text("version: 1\n")
    monkeypatch.chdir(tmp_path)
    assert _airlock(*command, "--json")[0] == 3
    _airlock(*command, "--address", "given:1", "--json")
    assert asked == ["of-the-environment:1", "given:1"]
    _airlock(*command, "--config", made["config"], "--json")
    _airlock(*command, "--config", "airlock.yaml", "--json")  # it is not here, and was asked for
    (tmp_path / "airlock.yaml").symlink_to(made["config"])
    _airlock(*command, "--json")
    assert asked == ["of-the-environment:1", "given:1"]


def test_keys_of_a_tenant_that_is_not_there_are_an_error_not_an_empty_list(made: dict[str, Any]) -> None:
    code, printed = _airlock("key", "list", "--tenant", "nope", "--config", made["config"], "--json")
    assert code == 2
    assert "unknown tenant 'nope'" in json.loads(printed)["error"]
    assert _key(made, "list", "--tenant", "default", "--state", "revoked") == []
    reported = _airlock("key", "list", "--tenant", "default", "--state", "revoked", "--config", made["config"])
    assert reported == (0, "no keys\n")
