"""`airlock policy`: exit codes, what programs get and what people see."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import create_engine, insert
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.policy import STARTER_POLICY
from gateway.storage.tables import threads, tool_calls
from gateway.support.clock import now_us

GOOD = """\
version: 1
rules:
  - id: look
    tools: [read]
    paths: [/workspace/src/**]
    effect: allow
    reason: sources
    examples: {match: [/workspace/src/a], not_match: [/etc/passwd]}
  - {id: git, tools: [execute], argv: [[tool, [status, diff]]], effect: allow, reason: looking}
tests:
  - {tool: execute, args: {command: tool push}, verdict: deny, rule: default-deny}
"""
UNTRUE = GOOD.replace("verdict: deny, rule: default-deny", "verdict: allow")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["policy", *map(str, arguments)])


def said(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_test_lists_each_example_and_fails_when_one_is_untrue(file: Path) -> None:
    assert run("test", file).exit_code == 0
    assert "3 of 3 passed" in run("test", file).stdout
    file.write_text(UNTRUE)
    result = run("test", file)
    assert result.exit_code == 1
    assert f"{file}:11" in result.stdout
    outcomes = said("test", file)["outcomes"]
    assert [outcome["passed"] for outcome in outcomes] == [True, True, False]


def test_test_judges_with_the_operators_layer(file: Path, tmp_path: Path) -> None:
    operator = tmp_path / "operator.yaml"
    operator.write_text("version: 1\nrules:\n- {id: all, tools: [execute], effect: deny, reason: r}")
    file.write_text(GOOD.replace("default-deny", "operator/all"))
    assert run("test", file).exit_code == 1
    assert run("test", file, "--operator", operator).exit_code == 0


def test_check_keeps_its_answer_and_judges_tests_with_the_operators_layer(file: Path, tmp_path: Path) -> None:
    assert said("check", file) == {"ok": True, "errors": []}
    operator = tmp_path / "operator.yaml"
    operator.write_text("version: 1\nrules:\n- {id: all, tools: [execute], effect: deny, reason: r}")
    answer = said("check", file, "--operator", operator)
    assert [set(error) for error in answer["errors"]] == [{"line", "field", "message"}]
    assert run("check", file, "--operator", operator).exit_code == 1


@pytest.mark.parametrize("command", ["test", "lint", "show", "replay"])
def test_a_file_that_does_not_load_is_wrong_usage_and_says_the_line(file: Path, command: str) -> None:
    file.write_text("version: 1\nrulez: []")
    result = run(command, file)
    assert result.exit_code == 2
    assert "rulez" in result.stderr
    assert set(said(command, file)) == {"error"}


@pytest.mark.parametrize("command", ["test", "lint", "show", "replay"])
def test_a_file_that_is_not_there_or_is_no_text_is_wrong_usage(file: Path, command: str) -> None:
    assert run(command, file.parent / "none").exit_code == 2
    file.write_bytes(b"\xff\xfe")
    assert run(command, file).exit_code == 2


def test_explain_keeps_its_three_fields_and_adds_what_matched_and_what_came_near(file: Path) -> None:
    answer = said("explain", file, "--tool", "execute", "--args", '{"command": "tool status && tool push"}')
    assert answer["verdict"] == "deny"
    assert answer["rule"] == "default-deny"
    assert "tool push" in answer["reason"]
    assert [match["rule"] for match in answer["trace"]] == ["git"]
    assert answer["near"][0]["rule"] == "git"
    assert "second word 'push'" in answer["near"][0]["why"]


def test_explain_says_what_the_kernel_grants_to_commands(file: Path) -> None:
    rules = (
        "  - {id: f, tools: [read, write], paths: [/workspace/**], effect: allow, reason: r}\n"
        "  - {id: s, tools: [read], paths: [/workspace/secrets/**], effect: deny, reason: r}\n"
    )
    file.write_text(f"version: 1\nenforcement: kernel\nrules:\n{rules}")
    command = ("explain", file, "--tool", "execute", "--args", '{"command": "true"}')
    assert said(*command)["files"]["unreadable"] == ["/workspace/secrets"]
    shown = " ".join(run(*command).stdout.split())
    assert "lets its commands write only below /workspace, and read only below /workspace" in shown
    assert "rules forbid or restrict what is below /workspace/secrets" in shown
    assert said("explain", file, "--tool", "ls", "--args", '{"path": "/workspace"}')["files"] is None


def test_check_explain_and_lint_know_connections(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    rule = "{id: %s, tools: [connect], effect: %s, reason: r, hosts: [%s]%s}\n"
    rules = [rule % ("api", "allow", "api.test", ", methods: [GET], url_paths: [/v1/**]")]
    rules += [rule % ("net", "deny", "10.0.0.0/8", ""), rule % ("dead", "deny", "10.0.0.5", "")]
    file.write_text("version: 1\nrules:\n- " + "- ".join(rules))
    assert run("check", file).exit_code == 0
    request = {"host": "API.test", "port": 80, "method": "GET", "path": "/v1/../v1/a"}
    allowed = said("explain", file, "--tool", "connect", "--args", json.dumps(request))
    assert (allowed["verdict"], allowed["rule"]) == ("allow", "api")
    posted = said("explain", file, "--tool", "connect", "--args", json.dumps(request | {"method": "POST"}))
    assert (posted["verdict"], posted["rule"]) == ("deny", "default-deny")
    assert [(near["rule"], near["why"]) for near in posted["near"]] == [("api", "POST is not GET")]
    raw = said("explain", file, "--tool", "connect", "--args", json.dumps({"host": "0xa000005", "port": 80}))
    assert (raw["verdict"], raw["rule"]) == ("deny", "net")
    assert "dead" in run("lint", file).stdout
    file.write_text("version: 1\nrules:\n- " + rule % ("wide", "allow", "'*.com'", ""))
    wide = run("check", file)
    assert wide.exit_code == 1
    assert "policy.yaml:3: rules[0].hosts[0]: *.com is too wide" in " ".join(wide.stdout.split())


def test_explain_shows_people_the_same(file: Path) -> None:
    result = run("explain", file, "--tool", "read_file", "--args", json.dumps({"path": "docs/\x1b[31ma"}))
    assert result.exit_code == 0
    assert "deny by default-deny" in result.stdout
    assert "/workspace/src/** does not match" in result.stdout
    assert "\x1b[31m" not in result.stdout


@pytest.mark.parametrize("arguments", ["[]", "{", '"x"'])
def test_explain_refuses_arguments_that_are_no_object(file: Path, arguments: str) -> None:
    assert run("explain", file, "--tool", "ls", "--args", arguments).exit_code == 2


def test_explain_judges_as_of_a_time(file: Path) -> None:
    file.write_text("version: 1\nrules:\n- {id: a, tools: [ls], effect: allow, reason: r, time: {days: [mon]}}")
    call = ("explain", file, "--tool", "ls", "--args", '{"path": "/workspace"}')
    assert said(*call, "--at", "2026-11-23T10:00")["verdict"] == "allow"
    assert said(*call, "--at", "2026-11-24T10:00")["verdict"] == "deny"
    assert run(*call, "--at", "soon").exit_code == 2


def test_lint_says_that_no_rule_lets_an_agent_start_its_subagents(tmp_path: Path) -> None:
    (tmp_path / "airlock.yaml").write_text(
        "tenants: {t: {policy: t.yaml}}\n"
        "agents: {lead: {capabilities: {subagents: {definitions: {r: {description: d, system_prompt: p}}}}}}\n",
        encoding="utf-8",
    )
    policy = tmp_path / "t.yaml"
    rule = "version: 1\nrules: [{{id: a, tools: [{}], effect: allow, reason: r}}]\n"
    policy.write_text(rule.format("ls"), encoding="utf-8")
    config = ("--config", str(tmp_path / "airlock.yaml"))
    assert said("lint", policy)["findings"] == []
    (finding,) = said("lint", policy, *config)["findings"]
    assert finding["what"] == "agent lead has subagents, but no rule allows spawn_subagent, so every start is denied"
    assert finding["severity"] == "warning"
    policy.write_text(rule.format("spawn_subagent"), encoding="utf-8")
    assert said("lint", policy, *config)["findings"] == []


def test_lint_ends_well_with_notes_only_and_badly_with_warnings(file: Path) -> None:
    file.write_text(STARTER_POLICY)
    assert run("lint", file).exit_code == 0
    assert said("lint", file)["ok"] is True
    file.write_text(GOOD.replace("[tool, [status, diff]]", "[python3]"))
    result = run("lint", file)
    assert result.exit_code == 1
    assert f"{file}:9: warning git" in result.stdout


def test_diff_fails_only_when_a_verdict_changes(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(GOOD.replace("sources", "the sources"))
    same = run("diff", file, other)
    assert same.exit_code == 0
    assert "~ rule look" in same.stdout
    other.write_text(
        GOOD.replace("[status, diff]", "[status, push]").replace("verdict: deny, rule: default-deny", "verdict: allow")
    )
    assert run("diff", file, other).exit_code == 1
    answer = said("diff", file, other)
    assert answer["changed"] == 1
    assert answer["changes"][0]["after"] == {"verdict": "allow", "rule": "git"}


def test_show_says_what_is_whose(file: Path, tmp_path: Path) -> None:
    operator = tmp_path / "operator.yaml"
    operator.write_text(
        "version: 1\nlimits: {steps: 3}\nrules: [{id: forbid, tools: [execute], argv: [[rm]], effect: deny, reason: r}]"
    )
    answer = said("show", file, "--operator", operator)
    assert answer["settings"]["limits.steps"] == {"value": 3, "who": "operator"}
    assert [(rule["rule"], rule["layer"]) for rule in answer["rules"]] == [
        ("operator/forbid", "operator"),
        ("look", "tenant"),
        ("git", "tenant"),
    ]
    assert "operator/forbid" in run("show", file, "--operator", operator).stdout


def test_show_wants_a_file_or_a_tenant(file: Path) -> None:
    assert run("show").exit_code == 2
    assert run("show", file, "--tenant", "default").exit_code == 2


def test_schema_prints_a_json_schema() -> None:
    assert "$schema" in json.loads(run("schema").stdout)
    as_json = run("schema", "--json").stdout
    assert (json.loads(as_json), as_json.count("\n")) == (json.loads(run("schema").stdout), 1)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    CliRunner().invoke(app, ["init", str(tmp_path / "here")])
    return tmp_path / "here" / "airlock.yaml"


def record(config: Path, *commands: str) -> None:
    engine = create_engine(f"sqlite:///{config.parent}/state/airlock.db")
    with engine.begin() as connection:
        thread = {"id": "t", "tenant": "default", "name": "main", "created_us": 1}
        connection.execute(insert(threads), thread)
        for place, command in enumerate(commands):
            text = json.dumps({"command": command}, separators=(",", ":"))
            row = {"id": f"call_{place}", "tenant": "default", "thread_id": "t", "name": "execute", "arguments": text}
            row |= {"arguments_digest": hashlib.sha256(text.encode()).hexdigest(), "policy_version": "p"}
            row |= {"state": "finished", "verdict": "allow", "rule": "any-command", "started_us": str(now_us())}
            connection.execute(insert(tool_calls), row | {"started_us": now_us()})
    engine.dispose()


def test_replay_says_what_would_change_over_the_journal(file: Path, config: Path) -> None:
    record(config, "tool status", "tool push", "printf '\x1b[31m'")
    call = ("replay", file, "--config", config)
    result = run(*call)
    assert result.exit_code == 1
    assert "2 of 3 verdicts change" in result.stdout
    assert "allow by any-command -> deny by default-deny" in result.stdout
    assert "\x1b[31m" not in result.stdout
    answer = said(*call, "--since", "1h", "--tenant", "default")
    assert (answer["calls"], answer["changed"], answer["not_judged"]) == (3, 2, {})
    assert said(*call, "--since", "2999-01-01")["calls"] == 0


def test_replay_ends_well_when_nothing_changes(file: Path, config: Path) -> None:
    record(config, "tool status")
    assert run("replay", file, "--config", config).exit_code == 0


def test_replay_and_show_refuse_a_tenant_that_is_not_there(file: Path, config: Path) -> None:
    assert run("replay", file, "--config", config, "--tenant", "nobody").exit_code == 2
    assert run("show", "--config", config, "--tenant", "nobody").exit_code == 2
    assert run("replay", file, "--config", file.parent / "none.yaml").exit_code == 2


def test_show_of_a_tenant_is_what_its_file_says_until_something_was_applied(config: Path) -> None:
    assert [rule["rule"] for rule in said("show", "--config", config, "--tenant", "default")["rules"]] == [
        "files",
        "any-command",
        "python",
        "agent-tools",
    ]
