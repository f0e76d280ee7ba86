"""`airlock runs list`: in a narrow terminal as well, what is to be copied is whole."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import get_args

from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.runs import Status, _listed
from gateway.cli.terminal import SafeConsole
from gateway.client import ModelUse, Run, RunStatus, Usage

STARTED = datetime(2026, 11, 21, 20, 21, 20, tzinfo=UTC)


def test_the_id_and_status_of_a_run_are_whole_at_80_columns() -> None:
    ids = [f"run_{number:024x}" for number in range(3)]
    runs = [Run(id_, "a-long-thread", "default", "completed", {}, 1, "[red]x " * 9, STARTED, None) for id_ in ids]
    screen = io.StringIO()
    SafeConsole(file=screen, width=80, soft_wrap=True, force_terminal=True, color_system=None).print(_listed(runs))
    lines = screen.getvalue().splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("run_")] == [[id_, "completed"] for id_ in ids]
    assert [sum(text in line for line in lines) for text in ("a-long-thread", "[red]x")] == [len(ids), len(ids)]


def test_a_run_is_listed_with_what_it_used() -> None:
    usage = Usage(3, 12_345, 10_000, 678, 500, 0, 0.0123)
    uses = (ModelUse("helper", "gpt-5", usage, None), ModelUse("default", "gpt-5-mini", usage, 412.3))
    run = Run("run_1", "t", "default", "completed", {}, 1, "x", STARTED, None, steps=2, usage=usage, models=uses)
    screen = io.StringIO()
    SafeConsole(file=screen, width=200, color_system=None).print(_listed([run]))
    shown = screen.getvalue()
    tokens = "12,345 (10,000 cached) tokens in, 678 (500 reasoning) out"
    assert f"gpt-5-mini: 2 steps, {tokens}, $0.0123, first text after 412 ms" in shown


def test_a_status_is_one_of_the_client_s_or_wrong_usage() -> None:
    assert tuple(one.value for one in Status) == get_args(RunStatus)
    ended = CliRunner().invoke(app, ["runs", "list", "--status", "foo", "--address", "127.0.0.1:1"])
    assert ended.exit_code == 2
    assert all(word in ended.output for word in ("--status", "completed", "cancelled"))
