import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from tests.gateway_process import make_home

DOCS = Path(__file__).parents[4] / "docs" / "audit.md"


@pytest.fixture
def database_file(tmp_path: Path) -> Path:
    file = tmp_path / "airlock.db"

    async def work(database: Database) -> None:
        for n in range(20):
            await AuditStore(database).write(
                AuditEntry("acme", "tool_call", "alk_\u00e9", tool="execute", details={"exit_code": n})
            )

    in_database(file, work)
    return file


def in_database(file: Path, work: object) -> None:
    async def opened() -> None:
        database = await Database.open(f"sqlite:///{file}")
        try:
            await work(database)  # type: ignore[operator]
        finally:
            await database.close()

    asyncio.run(opened())


def exported(file: Path, path: Path) -> Path:
    async def work(database: Database) -> None:
        lines = [record.line() async for record in AuditReader(database).chain("acme")]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    in_database(file, work)
    return path


def verify(*arguments: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(app, ["audit", "verify", *arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_a_database_is_verified_without_a_gateway(database_file: Path, tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(database_url=f"sqlite:///{database_file}")
    config = ("--config", str(home.config), "--tenant", "acme")
    code, report = verify(*config)
    assert (code, report["whole"], report["last_sequence"]) == (0, True, 20)
    assert verify(*config, "--known", f"20:{report['last_digest']}")[0] == 0

    async def tamper(database: Database) -> None:
        await database.write((text("DROP TRIGGER audit_records_changed"), None))
        await database.write((text("UPDATE audit_records SET tool = 'ls' WHERE sequence = 7"), None))

    in_database(database_file, tamper)
    code, report = verify(*config)
    assert (code, report["whole"], report["broken_sequence"]) == (1, False, 7)
    said = CliRunner().invoke(app, ["audit", "verify", *config])
    assert (said.exit_code, "broken at 7: changed" in said.stdout) == (1, True)


def test_an_export_is_verified_without_anything_else(database_file: Path, tmp_path: Path) -> None:
    file = exported(database_file, tmp_path / "audit.jsonl")
    assert verify("--file", str(file))[0] == 0
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:4] + lines[5:]), encoding="utf-8")
    code, report = verify("--file", str(file))
    assert (code, report["broken_sequence"]) == (1, 5)
    file.write_text(lines[0] + "{}\n", encoding="utf-8")
    code, answer = verify("--file", str(file))
    assert code == 2
    assert "line 2" in str(answer["error"])


def test_the_ten_lines_of_the_documentation_verify_an_export(database_file: Path, tmp_path: Path) -> None:
    snippet = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert snippet is not None
    file = exported(database_file, tmp_path / "audit.jsonl")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-c", snippet[1], str(file)], capture_output=True, text=True, check=False, timeout=60
        )

    well = run()
    assert (well.returncode, "whole, up to 20" in well.stdout) == (0, True)
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace('"tool": "execute"', '"tool": "ls"', 1), encoding="utf-8")
    assert "record 1 was changed" in run().stderr
    file.write_text("".join(line for line in whole.splitlines(keepends=True) if '"sequence": 9,' not in line))
    assert "record 10 does not follow" in run().stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "--known", "nonsense"),
        ("verify", "--file", "a", "--config", "b"),
        ("verify", "--file", "/nowhere/at/all"),
        ("query", "--since", "yesterday"),
        ("export", "--to", "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["audit", *arguments, "--key", "alk_x", "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]
