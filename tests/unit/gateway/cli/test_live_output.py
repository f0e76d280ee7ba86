"""Output of a call on a terminal: shown as it comes once the call is slow, and never a second time."""

from __future__ import annotations

import asyncio
import io

import pytest

from gateway.cli import tool
from gateway.cli.terminal import SafeConsole
from gateway.cli.tool import LiveOutput
from gateway.client import ToolResult


def _screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    monkeypatch.setattr(tool, "out", SafeConsole(file=screen, force_terminal=True, soft_wrap=True))
    return screen


def _result(stdout: bytes, stderr: bytes = b"", content: bytes | None = None) -> ToolResult:
    return ToolResult(
        call_id="call_1",
        thread="t",
        verdict="allow",
        rule="r",
        reason="",
        outcome="exited",
        exit_code=0,
        content_bytes=stdout + stderr if content is None else content,
        is_error=False,
        evicted=None,
        duration_ms=1.0,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
    )


async def test_a_slow_call_is_shown_as_it_comes_whole_and_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _screen(monkeypatch)
    euro = "€".encode()
    with LiveOutput(quiet_s=0) as live:
        live.add("stdout", b"[bold]one " + euro[:1])
        assert screen.getvalue() == ""
        await asyncio.sleep(0.01)
        assert screen.getvalue() == "[bold]one "
        live.add("stderr", b"\x1b[2Jtwo ")
        live.add("stdout", euro[1:])
    assert screen.getvalue() == "[bold]one \u241b[2Jtwo €\n"
    assert live.showed(_result(b"[bold]one " + euro, b"\x1b[2Jtwo "))
    assert not live.showed(_result(b"[bold]one " + euro, b"\x1b[2Jtwo!"))
    assert not live.showed(_result(b"[bold]one " + euro, b"\x1b[2Jtwo ", content=b"cut"))


async def test_of_a_quick_call_nothing_is_shown_before_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _screen(monkeypatch)
    with LiveOutput(quiet_s=3600) as live:
        live.add("stdout", b"one")
    assert screen.getvalue() == ""
    assert not live.showed(_result(b"one"))
