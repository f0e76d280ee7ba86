"""Whatever the command line prints of what others chose is safe for a terminal, and exact for a file."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.live import Live
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import gateway.cli
from gateway.cli.printable import Rows
from gateway.cli.terminal import SafeBytes, SafeConsole, SafeText, safe_json

# A cleared screen, a window's title, the one-byte form of ESC [, a reversed direction, markup and an emoji's name.
HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\x9b31md\u202eef [red]g[/red] :warning:"
DANGEROUS = ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e")


def _printed(*renderables: object, style: str = "") -> str:
    screen = io.StringIO()
    console = SafeConsole(file=screen, width=200, force_terminal=True, color_system=None, soft_wrap=True)
    for renderable in renderables:
        console.print(renderable, style=style)
    return screen.getvalue()


def test_no_renderable_carries_an_escape_sequence_or_markup() -> None:
    table = Table("name", HOSTILE)
    table.add_row(HOSTILE, Text(HOSTILE))
    for renderable in (HOSTILE, Text(HOSTILE), table, Panel(HOSTILE, title=Text(HOSTILE)), Rows(["n"], [[HOSTILE]])):
        said = _printed(renderable)
        assert not [bad for bad in DANGEROUS if bad in said]
        assert "[red]g" in said
    assert "[red]g[/red] :warning:" in _printed(HOSTILE)


def test_a_live_display_and_a_progress_bar_are_as_safe() -> None:
    screen = io.StringIO()
    console = SafeConsole(file=screen, width=200, force_terminal=True, color_system=None)
    with Live(Text(HOSTILE), console=console, auto_refresh=False) as live:
        live.refresh()
    with Progress(console=console, auto_refresh=False) as progress:
        progress.add_task(HOSTILE, total=2)
        progress.refresh()
    said = screen.getvalue()
    assert said.count("\u241b[2J") >= 2
    assert not [bad for bad in DANGEROUS if bad in said]


def test_a_style_of_our_own_reaches_the_terminal() -> None:
    screen = io.StringIO()
    SafeConsole(file=screen, force_terminal=True, color_system="standard").print("ok", style="green")
    assert screen.getvalue() == "\x1b[32mok\x1b[0m\n"


def test_bytes_on_a_terminal_are_printable_in_whatever_pieces_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.openpty()
    with open(writer, "w", encoding="utf-8", newline="") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        shown = SafeBytes()
        for byte in "é\x1b[2J\r\nend\r".encode():
            shown.write(bytes([byte]))
        shown.write(b"\xc3")
        shown.end()
        said = b""
        while not said.endswith("\ufffd".encode()):
            said += os.read(reader, 1000)  # a terminal gives a line at a time
        assert said.decode() == "é\u241b[2J\r\nend\u240d\ufffd"
    os.close(reader)


def test_bytes_in_a_pipe_are_unchanged_whatever_the_settings_of_rich(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = SafeBytes()
    shown.write(b"\x1b[2J\xff\r\n\x00")
    shown.end()
    assert capfdbinary.readouterr().out == b"\x1b[2J\xff\r\n\x00"


def test_a_line_s_end_in_two_pieces_is_one() -> None:
    text = SafeText()
    assert [text.add(b"a\r"), text.add(b"\nb\r"), text.add(b"c"), text.add(b"\r", final=True)] == [
        "a", "\nb", "\u240dc", "\u240d",
    ]  # fmt: skip


def test_json_for_programs_is_the_same_value_and_safe_to_look_at() -> None:
    value = {HOSTILE: [HOSTILE, "é 🚀", "\ud800", "\U000e0041", "\x7f"]}
    said = safe_json(value)
    assert json.loads(said) == value
    assert "é 🚀" in said
    assert said.isprintable()
    said.encode()


def test_nothing_of_the_command_line_prints_past_the_one_printer() -> None:
    found = []
    for path in sorted(Path(gateway.cli.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            # print_json() of terminal.py writes what safe_json() made; the probe prints inside a sandbox.
            allowed = (path.name, called) in {("terminal.py", "sys.stdout.write"), ("network_probe.py", "print")}
            names = {"print", "Console", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write"}
            if (called in names or "stdout.buffer" in called or "stderr.buffer" in called) and not allowed:
                found.append(f"{path.name}:{node.lineno} {called}")  # type: ignore[attr-defined]
    assert found == []
