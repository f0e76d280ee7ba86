"""`airlock sandbox`: what tenants named is shown as it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.cli import sandbox
from gateway.cli.terminal import out
from gateway.client import DiskStats, Sandbox, SandboxStats


def test_a_threads_name_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    made = datetime(2026, 11, 21, tzinfo=UTC)
    sandbox._show_sandboxes(Sandbox("sbx", "[/evil] [red]x", "[link=http://x]image", "runc", made, 0))
    reported = capsys.readouterr().out
    assert "[/evil] [red]x" in reported
    assert "[link=http://x]image" in reported


def test_what_is_unknown_is_a_question_mark_and_the_busiest_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(
        ("cpu_s", "cpus", "cpus_limit", "memory_bytes", "memory_limit_bytes", "memory_peak_bytes", "pids", "pids_limit")
    )
    idle = SandboxStats(id="s1", thread="idle", runtime="runsc", calls=0, workspace=None, tmp=None, **nothing)  # type: ignore[arg-type]
    busy = SandboxStats(
        "s2", "[red]busy", "runc", 3, 12.5, 0.75, 1.5, 5 * 1024**2, 1024**3, None, 7, 512,
        DiskStats(1536, partial=True, limit_bytes=1024**2), DiskStats(10, partial=False, limit_bytes=None),
    )  # fmt: skip
    out.print(sandbox._table([idle, busy]))
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "thread"
    assert first.split() == ["[red]busy", "0.75/1.5", "12.5s", "5.0M/1.0G", "7/512", "1.5K+/1.0M", "10", "3"]
    assert second.split() == ["idle", "?", "?", "?", "?", "?", "?", "0"]
