"""Secrets are read from where the operator said, again after a while, and checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.network_settings import SecretSettings
from gateway.network.secret_value import SecretUnavailable, SecretValue


def _value(now: list[float] | None = None, **source: Any) -> SecretValue:
    return SecretValue(SecretSettings.model_validate(source), (lambda: now[0]) if now else (lambda: 0.0))


async def test_it_is_read_from_environment_file_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("SOME_SECRET", "from the environment")
    assert await _value(environment="SOME_SECRET").current() == "from the environment"
    assert await _value(file=str(tmp_path / "secret")).current() == "from a file"
    assert await _value(command=[sys.executable, "-c", "print('from a command')"]).current() == "from a command"


async def test_it_rotates_and_its_past_values_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    now = [0.0]
    value = _value(now, file=str(path))
    for at, (text, expected) in enumerate([("value one", "value one"), ("value two", "value one")]):
        path.write_text(text)
        now[0] = at * 5.0
        assert await value.current() == expected
    now[0] = 10.0
    assert await value.current() == "value two"
    path.unlink()
    now[0] = 15.0
    assert await value.current() == "value two"
    now[0] = 20.0
    with pytest.raises(SecretUnavailable):
        await value.current()
    assert list(value.seen) == ["value one", "value two"]
    path.write_text("value one")
    assert await value.current() == "value one"
    assert list(value.seen) == ["value two", "value one"]


@pytest.mark.parametrize(
    "source, why",
    [
        ({"environment": "NO_SUCH_VARIABLE"}, "no NO_SUCH_VARIABLE"),
        ({"file": "/no/such/file"}, "No such file"),
        ({"command": ["/no/such/program"]}, "No such file"),
        ({"command": ["sh", "-c", "echo hidden-value; exit 3"]}, "exit code 3"),
        ({"command": ["sh", "-c", "echo short"]}, "less than 8"),
        ({"command": ["sh", "-c", "yes"]}, "more than"),
        ({"command": ["sh", "-c", "printf 'hidden\\nvalue'"]}, "cannot carry"),
        ({"command": ["sh", "-c", "printf ' hidden-value'"]}, "cannot carry"),
    ],
)
async def test_what_is_no_secret_is_refused_without_saying_it(source: dict[str, Any], why: str) -> None:
    with pytest.raises(SecretUnavailable, match=why) as refused:
        await _value(**source).current()
    assert "hidden" not in str(refused.value)
