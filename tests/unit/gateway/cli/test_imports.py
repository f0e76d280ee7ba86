"""What a command imports: only what it needs, as each import is a part of what `airlock` takes, in time and in memory.

These are the modules that are large: what takes 10 ms or 1 MiB.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gateway.cli.main import app
from tests.gateway_process import make_home

_SHOWS_IMPORTED = "import sys\n{}\nprint(*sys.modules)"
# A call from a shell, to a gateway that does not answer.
_CALLS_A_TOOL = """
from gateway.cli.main import app
try:
    app(["tool", "call", "execute", "{}", "--address", "127.0.0.1:1", "--key", "alk_x"])
except SystemExit:
    pass
"""
# `airlock serve` until it is ready.
_SERVES = """
import asyncio
from pathlib import Path
import gateway.cli.main, gateway.cli.serve
from gateway.config.config import Config
from gateway.server import running_gateway
from gateway.telemetry.logging import set_up_logging

async def until_ready():
    async with running_gateway(Config.load(Path(sys.argv[1])), "127.0.0.1:0"):
        print(*sys.modules)

set_up_logging()
asyncio.run(until_ready())
"""


def _imported(code: str, *arguments: str) -> set[str]:
    program = [sys.executable, "-c", _SHOWS_IMPORTED.format(code), *arguments]
    return set(subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout.split())


@pytest.mark.parametrize(
    "code, absent",
    [
        ("import gateway.errors", {"grpc", "importlib.metadata"}),
        ("import gateway.cli.main", {"grpc", "gateway.cli.tool", "gateway.client"}),
        ("import gateway.cli.main as m; m.app.info.cls().commands['tool']", {"grpc", "gateway.cli.policy"}),
        ("import gateway.client", {"opentelemetry", "grpc_status", "google.rpc", "gateway.errors", "gateway.v1"}),
        # Of --help, which names all commands.
        ("import gateway.cli.main as m; [*m.app.info.cls().commands.values()]", {"grpc", "gateway.config", "pydantic"}),
        (_CALLS_A_TOOL, {"gateway.config", "opentelemetry", "pydantic", "structlog", "yaml"}),
        ("import gateway.server", {"docker", "gateway.composition.services", "sandbox.engines.local"}),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, absent: set[str]) -> None:
    assert not absent & _imported(code)


def test_a_gateway_that_is_ready_has_imported_no_other_engine_database_or_protocol(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"engine": "memory"})
    imported = _imported(_SERVES, str(home.config))
    assert "gateway.composition.services" in imported
    assert not imported & {"docker", "kubernetes_asyncio", "sandbox.engines.docker", "botocore"}
    assert not imported & {"alembic", "psycopg", "sqlalchemy.dialects.postgresql"}
    assert not imported & {"h11", "h2", "mcp", "openai", "opentelemetry.sdk", "requests", "starlette", "uvicorn"}
    assert not imported & {"cel", "cryptography", "idna", "jsonschema", "jwt"}


def test_every_subcommand_has_the_name_that_it_is_listed_by() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [made.name for made in commands.values()] == list(commands)
