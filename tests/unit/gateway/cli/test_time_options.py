"""--since and --until, which every command reads alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import tzset

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.command import moment
from gateway.cli.main import app

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1")
    tzset()
    yield
    monkeypatch.undo()
    tzset()


@pytest.mark.parametrize(
    "text, ago", [("30m", timedelta(minutes=30)), ("12h", timedelta(hours=12)), ("2w", timedelta(weeks=2))]
)
def test_a_span_counts_back(text: str, ago: timedelta) -> None:
    assert moment(text, NOW) == NOW - ago


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    "text, at",
    [
        ("2026-11-20", datetime(2026, 11, 19, 23, tzinfo=UTC)),
        ("2026-11-20T08:00", datetime(2026, 11, 20, 7, tzinfo=UTC)),
        ("2026-11-20T08:00:00Z", datetime(2026, 11, 20, 8, tzinfo=UTC)),
        ("2026-11-20T08:00:00+05:30", datetime(2026, 11, 20, 2, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_this_machine_s_unless_it_names_an_offset(text: str, at: datetime) -> None:
    assert moment(text, NOW) == at


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "0d", "999999w", "yesterday"])
def test_what_is_no_time_says_how_to_write_one(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write"):
        moment(text, NOW)


@pytest.mark.parametrize("command", [("runs", "list"), ("audit", "query")])
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_commands_agree_on_what_is_a_time(command: tuple[str, str], option: str) -> None:
    def asked(text: str) -> tuple[int, str]:
        ended = CliRunner().invoke(app, [*command, option, text, "--address", "127.0.0.1:1", "--json"])
        return ended.exit_code, json.loads(ended.stdout)["error"]

    code, said = asked("yesterday")
    assert (code, option in said, "7d" in said) == (2, True, True)
    code, said = asked("24h")  # it is understood: the gateway is asked, and there is none
    assert (code, "Is the gateway running?" in said) == (3, True)
