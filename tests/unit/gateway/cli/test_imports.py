"""What a command imports: only what it needs, as each import is a part of what `airlock` takes to start."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from gateway.cli.main import app

_SHOWS_IMPORTED = "import sys\n{}\nprint(*sys.modules)"


def _imported(code: str) -> set[str]:
    program = [sys.executable, "-c", _SHOWS_IMPORTED.format(code)]
    return set(subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout.split())


@pytest.mark.parametrize(
    "code, absent",
    [
        ("import gateway.errors", {"grpc", "importlib.metadata"}),
        ("import gateway.cli.main", {"grpc", "gateway.cli.tool", "gateway.client"}),
        ("import gateway.cli.main as m; m.app.info.cls().commands['tool']", {"grpc", "gateway.cli.policy"}),
        ("import gateway.client", {"opentelemetry", "grpc_status", "google.rpc", "gateway.errors", "gateway.v1"}),
        ("import gateway.server", {"alembic", "cryptography", "jsonschema", "jwt", "openai"}),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, absent: set[str]) -> None:
    assert not absent & _imported(code)


def test_every_subcommand_has_the_name_that_it_is_listed_by() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [made.name for made in commands.values()] == list(commands)
