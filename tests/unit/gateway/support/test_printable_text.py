"""Text from outside, made safe for a terminal."""

from __future__ import annotations

import pytest

from gateway.support import printable_text
from gateway.support.printable_text import printable


def test_no_more_of_a_text_is_looked_at_than_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(printable_text, "is_unprintable", lambda character: bool(seen.append(character)))
    assert printable("a\x1b" * 100_000, 100) == "a\u241b" * 50
    assert len(seen) == 100


def test_a_text_within_the_limit_is_shown_as_without_one() -> None:
    for text in ("plain", "a\x1b\u200b\r\nb", ""):
        assert printable(text, len(text)) == printable(text)
