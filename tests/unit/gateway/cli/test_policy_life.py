"""`airlock policy apply, history, rollback, current` and `airlock key create`, on a configuration as init makes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app


def _text(name: str, *, effect: str = "allow") -> str:
    return f"version: 1\nrules:\n- {{id: {name}, tools: [execute], effect: {effect}, reason: r}}\n"


class Line:
    """The command line in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made = self.ask("init", str(directory))
        self.config = self.made["config"]

    def run(self, *arguments: str) -> tuple[int, str]:
        ran = CliRunner().invoke(app, arguments)
        return ran.exit_code, ran.output

    def ask(self, *arguments: str, code: int = 0) -> Any:
        exit_code, output = self.run(*arguments, "--json")
        assert exit_code == code, output
        return json.loads(output.splitlines()[-1])

    def policy(self, command: str, *arguments: str, code: int = 0) -> Any:
        return self.ask("policy", command, *arguments, "--config", self.config, code=code)

    def file(self, text: str) -> str:
        path = self.directory / "candidate.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def test_apply_history_rollback_and_current_agree(line: Line) -> None:
    of = ("--tenant", "default")
    first = line.policy("apply", line.file(_text("first")), *of, "--by", "ann", "--comment", "a start")
    second = line.policy("apply", line.file(_text("second")), *of, "--by", "bob")
    assert (first["ok"], second["ok"]) == (True, True)
    assert first["version"].startswith("policy_")
    assert line.policy("current", *of)["in_force"] == second["version"]
    back = line.policy("rollback", *of, "--by", "cid")
    assert (back["version"], back["kind"]) == (first["version"], "rollback")
    reported = [(one["version"], one["kind"], one["by"], one["comment"]) for one in line.policy("history", *of)]
    assert reported == [
        (first["version"], "rollback", "cid", ""),
        (second["version"], "apply", "bob", ""),
        (first["version"], "apply", "ann", "a start"),
    ]
    named = line.policy("rollback", second["version"], *of)
    assert named["digest"] == second["digest"]
    assert line.policy("current", *of, "--text")["text"] == _text("second")


def test_applying_another_text_than_the_watched_files_says_that_an_edit_replaces_it(line: Line) -> None:
    of = ("--tenant", "default")
    watched = line.directory / "policies" / "default.yaml"
    assert line.policy("apply", line.file(_text("first")), *of)["watched_file_differs"] == str(watched)
    _, output = line.run("policy", "apply", line.file(_text("second")), *of, "--config", line.config)
    assert f"{watched} differs" in output
    watched.write_text(_text("third"), encoding="utf-8")
    assert "watched_file_differs" not in line.policy("apply", line.file(_text("third")), *of)


def test_what_is_in_force_already_is_not_applied_again(line: Line) -> None:
    of = ("--tenant", "default")
    assert not line.policy("apply", line.file(_text("first")), *of)["unchanged"]
    assert line.policy("apply", line.file(_text("first")), *of)["unchanged"]
    assert len(line.policy("history", *of)) == 1


def test_a_policy_is_not_applied_over_another_one_than_was_expected(line: Line) -> None:
    of = ("--tenant", "default")
    first = line.policy("apply", line.file(_text("first")), *of, "--expected-version", "")["version"]
    second = line.policy("apply", line.file(_text("second")), *of, "--expected-version", first)["version"]
    refused = line.policy("apply", line.file(_text("third")), *of, "--expected-version", first, code=1)
    assert (refused["reason"], refused["version"]) == ("POLICY_CHANGED", second)
    assert "nothing was changed" in refused["error"]
    assert line.policy("current", *of)["version"] == second


def test_a_bad_policy_changes_nothing_and_every_problem_is_reported(line: Line) -> None:
    bad = line.file("version: 1\nrules:\n- {id: a, tools: [execute], effect: maybe, reason: r}\n- {id: b}\n")
    said = line.policy("apply", bad, "--tenant", "default", code=1)
    assert not said["ok"]
    assert {error["line"] for error in said["errors"]} == {3, 4}
    assert line.policy("history", "--tenant", "default") == []
    code, output = line.run("policy", "apply", bad, "--tenant", "default", "--config", line.config)
    assert (code, "nothing changed" in output) == (1, True)


def test_all_problems_are_reported_with_the_name_of_the_file_and_an_empty_file_is_one(line: Line) -> None:
    bad = line.file("version: 1\nrules:\n" + "- {id: a}\n" * 60)
    said = line.policy("apply", bad, "--tenant", "default", code=1)
    assert {error["line"] for error in said["errors"]} >= set(range(3, 63))
    _, output = line.run("policy", "apply", bad, "--tenant", "default", "--config", line.config)
    assert f"{bad}:62: " in output
    empty = line.policy("apply", line.file(""), "--tenant", "default", code=1)
    assert "the file is empty" in empty["errors"][0]["message"]


def test_a_policy_that_an_agent_cannot_be_made_with_is_refused(line: Line) -> None:
    limited = line.file("version: 1\nlimits: {cost_usd: 1.0}\n")
    assert "input_usd_per_mtok" in line.policy("apply", limited, "--tenant", "default", code=1)["errors"][0]["message"]
    line.policy("apply", line.file(_text("own")), "--tenant", "default")
    # The other layer's limit would do the same.
    limited = line.file("version: 1\nlimits: {cost_usd: 1.0}\n")
    assert not line.policy("apply", limited, "--operator-layer", code=1)["ok"]


def test_the_operators_layer_is_shown_beside_the_tenants(line: Line) -> None:
    own = line.policy("apply", line.file(_text("own")), "--tenant", "default")
    operator = line.policy("apply", line.file(_text("never", effect="deny")), "--operator-layer")
    assert operator["tenant"] is None
    found = line.policy("current", "--tenant", "default")
    assert (found["version"], found["operator"]["version"]) == (own["version"], operator["version"])
    assert found["in_force"] not in (own["version"], operator["version"])


@pytest.mark.parametrize("which", [(), ("--tenant", "default", "--operator-layer"), ("--tenant", "")])
def test_one_layer_must_be_named(line: Line, which: tuple[str, ...]) -> None:
    assert "--operator-layer" in line.policy("history", *which, code=2)["error"]


def test_what_is_not_there_is_reported(line: Line) -> None:
    assert "configured tenants: default" in line.policy("history", "--tenant", "nobody", code=2)["error"]
    assert "not found" in line.policy("rollback", "policy_000000000000", "--tenant", "default", code=1)["error"]
    assert "no policy is in force" in line.policy("current", "--tenant", "default", code=1)["error"]


def test_init_makes_a_key_that_acts_one_that_approves_and_one_that_operates(line: Line) -> None:
    assert {"config", "tenant", "key", "approver_key", "operator_key"} == line.made.keys()
    assert len({line.made[name] for name in ("key", "approver_key", "operator_key")}) == 3


def test_a_key_is_made_for_what_was_asked(line: Line) -> None:
    make = ("key", "create", "--config", line.config)
    assert line.ask(*make)["scopes"] == ["run", "tool", "files"]
    assert line.ask(*make, "--scope", "approve")["scopes"] == ["approve"]
    assert line.ask(*make, "--scope", "tool", "--scope", "run")["scopes"] == ["run", "tool"]
    assert (
        "an agent must not approve itself" in line.ask(*make, "--scope", "approve", "--scope", "run", code=2)["error"]
    )
    assert "has run" in line.ask(*make, "--scope", "root", code=2)["error"]


def test_rollback_goes_back_step_by_step_and_says_from_where(line: Line) -> None:
    of = ("--tenant", "default")
    a, b, c = (line.policy("apply", line.file(_text(name)), *of)["version"] for name in ("a", "b", "c"))
    back = line.policy("rollback", *of)
    assert (back["before"], back["version"]) == (c, b)
    code, output = line.run("policy", "rollback", *of, "--config", line.config)
    assert code == 0
    assert f"from {b} to {a}" in output
    assert "no earlier version to roll back to" in line.policy("rollback", *of, code=1)["error"]
    # What was applied since is what is undone next.
    line.policy("apply", line.file(_text("d")), *of)
    assert line.policy("rollback", *of)["version"] == a
    # A version that is named is gone back to, and what came after it is undone with that.
    assert line.policy("rollback", c, *of)["version"] == c
    assert line.policy("rollback", *of)["version"] == a


def test_current_names_the_file_and_whether_it_is_in_force(line: Line) -> None:
    of = ("--tenant", "default")
    watched = line.directory / "policies" / "default.yaml"
    line.policy("apply", str(watched), *of)
    assert line.policy("current", *of)["file"] == {"path": str(watched), "state": "in force"}
    line.policy("apply", line.file(_text("other")), *of)
    assert line.policy("current", *of)["file"]["state"] == "not what is in force"
    watched.write_text("version: 2", encoding="utf-8")
    _, output = line.run("policy", "current", *of, "--config", line.config)
    assert f"{watched}: does not load" in output
    watched.unlink()
    assert line.policy("current", *of)["file"]["state"] == "cannot be read"


def test_versions_are_whole_however_much_there_is_to_say(line: Line) -> None:
    of = ("--tenant", "default")
    applied = line.policy("apply", line.file(_text("a")), *of, "--by", "x" * 60, "--comment", "why " * 30)
    _, output = line.run("policy", "history", *of, "--config", line.config)
    assert applied["version"] in output


def test_both_layers_at_once_are_distinguished_from_none(line: Line) -> None:
    assert "use only one of" in line.policy("history", "--tenant", "default", "--operator-layer", code=2)["error"]


def test_a_file_that_is_not_there_is_wrong_usage_for_every_command(line: Line) -> None:
    said = line.policy("apply", "/nonexist.yaml", "--tenant", "default", code=2)
    assert said["error"] == "FILE: /nonexist.yaml: No such file or directory"
    assert said["reason"] == "MISCONFIGURED"
    for command in ("check", "test", "lint"):
        assert "No such file" in line.ask("policy", command, "/nonexist.yaml", code=2)["error"]


def test_an_empty_file_is_reported_without_an_empty_field(line: Line) -> None:
    empty = line.file("")
    _, output = line.run("policy", "check", empty)
    assert f"{empty}:1: the file is empty" in output
    _, output = line.run("policy", "lint", empty)
    assert "line 1: the file is empty" in output
    code, output = line.run("policy", "explain", line.file(_text("a")), "--tool", "execute", "--args", "nojson")
    assert (code, "--args is not valid JSON" in output) == (2, True)


def test_an_empty_version_is_refused_and_changes_nothing(line: Line) -> None:
    refused = line.policy("rollback", "", "--tenant", "default", code=2)
    assert "leave it out" in refused["error"]


@pytest.mark.parametrize("command", [("replay", "policies/default.yaml"), ("show", "--tenant", "default")])
def test_commands_that_only_read_create_no_state_directory(line: Line, command: tuple[str, ...]) -> None:
    directory = Path(line.config).parent
    shutil.rmtree(directory / "state")
    words = [str(directory / word) if word.startswith("policies/") else word for word in command]
    code, output = line.run("policy", *words, "--config", line.config)
    assert (code != 0, "does not open" in output) == (True, True)
    assert not (directory / "state").exists()
