"""`airlock sandbox`: what tenants named is shown as it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.cli import sandbox
from gateway.client import Sandbox


def test_a_threads_name_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    made = datetime(2026, 11, 21, tzinfo=UTC)
    sandbox._show([Sandbox("sbx", "[/evil] [red]x", "[link=http://x]image", "runc", made, 0)])
    told = capsys.readouterr().out
    assert "[/evil] [red]x" in told
    assert "[link=http://x]image" in told
