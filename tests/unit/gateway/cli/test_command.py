"""What every command has in common: its options, its output and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.command import BackendCli, Cli, Commands, GatewayCli
from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_DENIED, EXIT_INTERRUPTED, EXIT_USAGE, fail, out
from gateway.errors import Misconfigured, ThreadBusy


@dataclass(frozen=True)
class Which:
    name: Annotated[str, typer.Option("--name")] = "any"
    count: Annotated[int, typer.Option(min=1)] = 1


app = Commands()


@app.command()
def local(cli: Cli, what: str, *, which: Which, code: int = EXIT_USAGE) -> None:
    if what == "wrong":
        fail("it is wrong", code)
    if what == "misconfigured":
        raise Misconfigured("it is misconfigured")
    if what == "ask":
        cli.confirm("Really?", yes=False)
    cli.show({"what": what, "which": which, "at": datetime(2026, 11, 23, tzinfo=UTC)}, f"{what} {which.name}")


@app.command()
async def remote(cli: GatewayCli, *, what: str = "", replaced: int = 0) -> None:
    cli.failure_code = replaced
    if what == "busy":
        raise ThreadBusy("a run is under way")
    if what == "interrupted":
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            out.print("put away")
    cli.show([cli.address, cli.key], lambda document: cli.show(document, "for people"))


@app.command()
async def either(cli: BackendCli) -> None:
    cli.show({"config": str(cli.config)})


def _airlock(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=answer)


@pytest.mark.parametrize(
    "command, options",
    [
        ("local", ["name", "count", "code", "as_json"]),
        ("remote", ["what", "replaced", "address", "key", "as_json"]),
        ("either", ["config", "address", "key", "as_json"]),
    ],
)
def test_a_command_has_the_options_of_its_context_after_its_own(command: str, options: list[str]) -> None:
    made = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    assert [one.name for one in made.params if one.param_type_name == "option" and one.name != "help"] == options


def test_a_dataclass_is_a_group_of_options() -> None:
    reported = json.loads(_airlock("local", "it", "--name", "n", "--count", "2", "--json").stdout)
    assert reported == {"what": "it", "which": {"name": "n", "count": 2}, "at": "2026-11-23T00:00:00+00:00"}
    assert _airlock("local", "it", "--count", "0").exit_code == EXIT_USAGE
    assert _airlock("local", "it").stdout == "it any\n"


def test_the_environment_says_where_the_gateway_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_ADDRESS", "there:1")
    monkeypatch.setenv("AIRLOCK_API_KEY", "alk_k")
    assert json.loads(_airlock("remote", "--json").stdout) == ["there:1", "alk_k"]
    assert _airlock("remote").stdout == "for people\n"


def test_an_error_ends_a_command_with_its_exit_code_and_one_line() -> None:
    ended = _airlock("local", "wrong", "--code", str(EXIT_BAD_NEWS))
    assert (ended.exit_code, ended.stdout, ended.stderr) == (EXIT_BAD_NEWS, "", "error: it is wrong\n")
    ended = _airlock("local", "misconfigured", "--json")
    assert (ended.exit_code, json.loads(ended.stdout)) == (EXIT_USAGE, {"error": "it is misconfigured"})
    ended = _airlock("remote", "--what", "busy", "--json")
    assert (ended.exit_code, json.loads(ended.stdout)["reason"]) == (3, "THREAD_BUSY")
    assert _airlock("remote", "--what", "busy", "--replaced", str(EXIT_DENIED)).exit_code == EXIT_DENIED


def test_ctrl_c_cancels_a_command_which_puts_its_things_away() -> None:
    ended = _airlock("remote", "--what", "interrupted")
    assert (ended.exit_code, ended.stdout) == (EXIT_INTERRUPTED, "put away\n")


def test_a_question_is_asked_of_people_only() -> None:
    ended = _airlock("local", "ask", "--json")
    assert (ended.exit_code, "add --yes" in json.loads(ended.stdout)["error"]) == (EXIT_USAGE, True)
    assert _airlock("local", "ask", answer="n\n").exit_code == 1
    assert _airlock("local", "ask", answer="y\n").exit_code == 0
