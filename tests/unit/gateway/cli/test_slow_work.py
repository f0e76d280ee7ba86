"""What a terminal shows of slow work, and that programs see nothing of it."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from gateway.cli import terminal as cli_terminal
from gateway.cli.terminal import SlowWork


class Screen(io.StringIO):
    """Standard error that says when something came."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str, /) -> int:
        if "verifying" in text:
            self.written.set()
        return super().write(text)


def _console(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> Screen:
    screen = Screen()
    monkeypatch.setattr(cli_terminal, "err", Console(file=screen, force_terminal=terminal, width=100))
    return screen


def test_slow_work_says_what_it_is_and_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _console(monkeypatch, terminal=True)
    with SlowWork("verifying", quiet_s=0) as work:
        work.at("[7] records")
        assert screen.written.wait(30)
        work.at("[8] records")
    assert "verifying" in screen.getvalue()
    assert "[8] records" in screen.getvalue()


def test_quick_work_and_programs_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _console(monkeypatch, terminal=True)
    with SlowWork("verifying", quiet_s=60) as work:
        work.at("1 record")
    assert screen.getvalue() == ""
    screen = _console(monkeypatch, terminal=False)
    with SlowWork("verifying", quiet_s=0) as work:
        work.at("1 record")
    assert screen.getvalue() == ""
