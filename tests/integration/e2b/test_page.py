"""The program of docs/e2b.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.http.conftest import Listening

_PAGE = Path(__file__).parents[3] / "docs" / "e2b.md"


def test_the_program_of_the_page_runs(gateway: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, value in (
        ("API_URL", f"{gateway.url}/e2b"),
        ("SANDBOX_URL", f"{gateway.url}/e2b"),
        ("API_KEY", gateway.key),
    ):
        monkeypatch.setenv(f"E2B_{name}", value)
    exec(compile(program, str(_PAGE), "exec"), {})
