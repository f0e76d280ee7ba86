"""What a narrow terminal, or none, shows: what is to be copied is whole, and no word is broken."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from gateway.audit.record import AuditRecord
from gateway.cli.audit_view import WIDE_COLUMNS, listed
from gateway.cli.row_lines import row_lines
from gateway.cli.serve_banner import banner
from gateway.cli.terminal import listing
from gateway.config import Config

RUN = f"run_{7:024x}"


def shown(told: RenderableType, width: int, **settings: Any) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width, highlight=False, soft_wrap=True, **settings).print(told)
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
    lines = shown(listed([record(12_345), record(1)], narrow=True), 80)
    assert lines[:4] == [
        "12345  2026-11-18T11:06:40.000+00:00  approval_resolved  alk_9Qx2v7Lm",
        f"       write_file in order-4711 {RUN}",
        "       deny by no-writing-outside-src  blocked",
        "       approval_id apr_1, message not on a [red]Sunday",
    ]
    assert lines[4].startswith("    1  2026-11-18")


def test_a_wide_terminal_has_columns_and_breaks_no_id() -> None:
    lines = shown(listed([record(2), record(1)], narrow=False), WIDE_COLUMNS)
    assert lines[0].split() == ["#", "at", "kind", "actor", "what", "verdict", "outcome", "details"]
    assert len([line for line in lines if "approval_resolved" in line and "alk_9Qx2v7Lm" in line]) == 2
    assert len([line for line in lines if RUN in line]) == 2


def test_a_list_at_80_columns_has_its_ids_whole_and_all_of_the_rest() -> None:
    table = listing("id", "thread", "image", "made", whole=("id", "made"))
    cells = (RUN, "order-" + "4711" * 8, "airlock-base", "2026-11-18 11:06")
    table.add_row(*cells)
    head, first, *more = shown(table, 80)
    assert head.split() == ["id", "thread", "image", "made"]
    assert first.split()[0] == RUN
    assert first.endswith(cells[3])
    folded = "".join(line.split()[0] for line in (first.split(RUN)[1], *more))
    assert folded == cells[1]


def test_of_the_rows_of_a_list_nothing_is_cut_and_no_line_of_them_is_broken() -> None:
    names = ("id", "thread", "made", "of", "comment")
    step, now = f"step 3, {RUN}", "2026-11-18 11:06"
    rows = [(f"snap_{7:024x}", "order-4711", now, step, "[red]\nlate"), (f"snap_{8:024x}", "\u7dda", now, "fork", "")]
    narrow = [line for row in row_lines(names, rows, below=2, width=80) for line in row.split("\n")]
    assert [line.split() for line in narrow[:2]] == [["id", "thread", "made"], ["of", "comment"]]
    assert narrow[2:4] == [f"{rows[0][0]}  order-4711  {now}", f"    {step}  [red] late"]
    assert narrow[4:] == [f"{rows[1][0]}  \u7dda          {now}", "    fork"]
    for width in (200, None):
        lines = row_lines(names, rows, below=2, width=width)
        assert lines[1] == f"{rows[0][0]}  order-4711  {now}  {step}  [red] late"
        assert len(lines) == 3


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_banner_breaks_no_line(tmp_path: Path, *, is_terminal: bool) -> None:
    url = f"postgresql://airlock:secret@database.{'very-' * 20}long.example:5432/airlock"
    config = Config.model_validate(
        {"directory": tmp_path, "tenants": {"acme": {"policy": "a.yaml"}}, "database_url": url}
    )
    lines = shown(banner(config, "127.0.0.1:7443", 2, ()), 40, force_terminal=is_terminal, color_system=None)
    assert lines[0] == "airlock answers at 127.0.0.1:7443; Ctrl-C stops it"
    (database,) = (line for line in lines if line.startswith("database"))
    assert database.split() == ["database", url.replace("secret", "***")]
    assert len(lines) == 7
