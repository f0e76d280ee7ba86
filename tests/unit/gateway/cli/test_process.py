"""What `airlock process` reads and shows, without a gateway."""

from __future__ import annotations

import sys

import pytest
import typer

from gateway.cli.process import _piece_as_json, _Shown, signal_number
from gateway.client import ProcessOutput


@pytest.mark.parametrize("text", ["TERM", "term", "SIGTERM", "sigterm", "15"])
def test_a_signal_is_named_or_numbered(text: str) -> None:
    assert signal_number(text) == 15


@pytest.mark.parametrize("text", ["", "SIG", "NOSUCH", "0", "65", "-9", "\u0661"])
def test_what_is_no_signal_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a signal"):
        signal_number(text)


def test_a_character_in_two_pieces_is_one_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    whole = "é🚀\n".encode()
    shown = _Shown()
    for at in range(len(whole)):
        shown.add(ProcessOutput(at, whole[at : at + 1]))
    shown.end()
    assert capsys.readouterr().out == "é🚀\n"


def test_half_a_character_before_a_hole_or_the_end_is_shown_as_what_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = _Shown()
    shown.add(ProcessOutput(0, b"a\xc3"))
    shown.add(ProcessOutput(10, b"\xa9b\xc3"))
    shown.end()
    assert capsys.readouterr().out == "a\ufffd\ufffdb\ufffd"


def test_a_piece_is_text_where_it_is_utf_8_and_base64_where_it_is_not() -> None:
    assert _piece_as_json(ProcessOutput(3, "é".encode())) == {"offset": 3, "text": "é"}
    assert _piece_as_json(ProcessOutput(3, b"\xff")) == {"offset": 3, "base64": "/w=="}
