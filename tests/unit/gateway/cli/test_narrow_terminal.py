"""What a narrow terminal, or none, shows: what is to be copied is whole, and no word is broken."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType

from airlock.audit_chain import AuditRecord
from gateway import __version__
from gateway.cli.audit import listed
from gateway.cli.printable import Rows
from gateway.cli.serve import Serving, banner
from gateway.cli.terminal import SafeConsole
from gateway.config.config import Config

RUN = f"run_{7:024x}"


def shown(reported: RenderableType, width: int, **settings: Any) -> list[str]:
    """Return the lines of a terminal without colours; `force_terminal=False` for a pipe."""
    screen = io.StringIO()
    terminal: dict[str, Any] = {"force_terminal": True, "color_system": None, **settings}
    SafeConsole(file=screen, width=width, soft_wrap=True, **terminal).print(reported)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def record(sequence: int) -> AuditRecord:
    return AuditRecord(
        tenant="acme",
        sequence=sequence,
        at_us=1_795_000_000_000_000,
        kind="approval_resolved",
        actor="alk_9Qx2v7Lm",
        thread="order-4711",
        run_id=RUN,
        call_id="c1",
        arguments_digest="",
        tool="write_file",
        verdict="deny",
        rule="no-writing-outside-src",
        policy_version="pol_1",
        outcome="blocked",
        size_bytes=0,
        duration_us=0,
        details='{"approval_id": "apr_1", "message": "not on a [red]Sunday"}',
        previous_digest="",
        digest="",
    )


def test_the_records_of_the_audit_can_be_read_at_80_columns() -> None:
    lines = shown(listed([record(12_345), record(1)]), 80)
    assert lines[3:7] == [
        "12345  2026-11-18T11:06:40.000+00:00  approval_resolved  alk_9Qx2v7Lm",
        f"    write_file in order-4711 {RUN}",
        "    deny by no-writing-outside-src  blocked  approval_id apr_1, message not on a",
        f"{' ' * 45}[red]Sunday",
    ]
    assert max(map(len, lines)) <= 80


def test_a_wide_terminal_has_columns_and_breaks_no_id() -> None:
    heading, *lines = shown(listed([record(2), record(1)]), 240)
    assert heading.split() == ["#", "at", "kind", "actor", "what", "verdict", "outcome", "details"]
    assert len([line for line in lines if "approval_resolved" in line and RUN in line]) == 2


def test_columns_that_do_not_fit_are_below_the_others_and_no_column_is_missing() -> None:
    names = ("id", "thread", "made", "of", "comment")
    step, now = f"step 3, {RUN}", "2026-11-18 11:06"
    rows = [(f"snap_{7:024x}", "order-4711", now, step, "[red]\nlate"), (f"snap_{8:024x}", "\u7dda", now, "fork", "")]
    assert shown(Rows(names, rows), 80) == [
        "id                             thread      made",
        f"    {'of':<{len(step)}}  comment",
        f"{rows[0][0]}  order-4711  {now}",
        f"    {step}  [red] late",
        f"{rows[1][0]}  \u7dda          {now}",
        "    fork",
    ]
    for width, settings in ((200, {}), (40, {"force_terminal": False})):
        lines = shown(Rows(names, rows), width, **settings)
        assert lines[1] == f"{rows[0][0]}  order-4711  {now}  {step}  [red] late"
        assert len(lines) == 3


def test_a_long_last_column_is_wrapped_between_words() -> None:
    said = "finds files whose names match a pattern " * 4
    lines = shown(Rows(("tool", "what it does"), [("glob", said), ("ls", "lists")]), 60)
    assert lines[1].startswith("glob  finds files")
    assert all(line.startswith("      ") for line in lines[2:-1])
    assert " ".join(line.removeprefix("glob").strip() for line in lines[1:-1]) == said.strip()
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_banner_breaks_no_line(tmp_path: Path, *, is_terminal: bool) -> None:
    url = f"postgresql://airlock:secret@database.{'very-' * 20}long.example:5432/airlock"
    config = Config.model_validate(
        {"directory": tmp_path, "tenants": {"acme": {"policy": "a.yaml"}}, "database_url": url}
    )
    lines = shown(banner(config, Serving("127.0.0.1:7443", workers=2)), 40, force_terminal=is_terminal)
    assert lines[0] == f"airlock {__version__} is listening on 127.0.0.1:7443; press Ctrl-C to stop"
    (database,) = (line for line in lines if line.startswith("database"))
    assert database.split() == ["database", url.replace("secret", "***")]
    assert len(lines) == 8
