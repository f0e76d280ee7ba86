import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from airlock.audit_chain import AuditRecord, ExportEnd
from gateway.cli.main import app
from gateway.client import Client
from gateway.errors import Unauthenticated
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
        records = [record async for record in AuditReader(database).chain("acme")]
        end = ExportEnd(records[0].sequence, records[-1].sequence, records[-1].digest)
        lines = [*(record.line() for record in records), end.line()]
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


@pytest.mark.parametrize(
    "kept, broken",
    [
        (slice(0, 20), 21),  # whole records, and no word of the end
        (slice(0, 0), 0),
        (slice(20, 21), 0),
        (slice(5, 21), 1),
        ([*range(10), 20], 11),
    ],
)
def test_an_export_that_was_cut_or_has_nothing_is_not_whole(
    database_file: Path, tmp_path: Path, kept: slice | list[int], broken: int
) -> None:
    file = exported(database_file, tmp_path / "audit.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    left = lines[kept] if isinstance(kept, slice) else [lines[number] for number in kept]
    file.write_text("".join(left), encoding="utf-8")
    code, report = verify("--file", str(file))
    assert (code, report["whole"], report["broken_sequence"]) == (1, False, broken)
    said = CliRunner().invoke(app, ["audit", "verify", "--file", str(file)]).stdout
    assert ("nothing to verify" in said) == (broken == 0)


@pytest.mark.parametrize("last", ['{"complete": true}', '{"complete": true, "first_sequence": "1"}', "{}"])
def test_nothing_comes_after_the_end_of_an_export_and_nothing_else_is_one(
    database_file: Path, tmp_path: Path, last: str
) -> None:
    file = exported(database_file, tmp_path / "audit.jsonl")
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole + last, encoding="utf-8")
    assert verify("--file", str(file))[0] == 2
    file.write_text("".join(whole.splitlines(keepends=True)[:-1]) + last, encoding="utf-8")
    assert verify("--file", str(file))[0] == 2


def test_an_export_has_its_name_only_once_it_is_complete(
    database_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = exported(database_file, tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
    refused = True

    async def tail(*_: object, **__: object) -> AsyncIterator[AuditRecord]:
        for number, line in enumerate(lines[:-1]):
            if refused and number == 5:
                raise Unauthenticated("no such key")
            yield AuditRecord.of_line(line)

    monkeypatch.setattr(Client, "tail_audit", tail)
    directory = tmp_path / "exports"
    directory.mkdir()
    export = ["audit", "export", "--to", str(directory / "a.jsonl"), "--key", "alk_x", "--json"]
    assert CliRunner().invoke(app, export).exit_code == 3
    assert list(directory.iterdir()) == []
    refused = False
    ended = CliRunner().invoke(app, export)
    assert (ended.exit_code, json.loads(ended.stdout)["records"]) == (0, 20)
    assert (directory / "a.jsonl").read_text(encoding="utf-8").splitlines() == lines
    again = CliRunner().invoke(app, export)
    assert (again.exit_code, "File exists" in again.stdout) == (2, True)
    assert [one.name for one in directory.iterdir()] == ["a.jsonl"]


def test_the_ten_lines_of_the_documentation_verify_an_export(database_file: Path, tmp_path: Path) -> None:
    snippet = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert snippet is not None
    file = exported(database_file, tmp_path / "audit.jsonl")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-c", snippet[1], str(file)], capture_output=True, text=True, check=False, timeout=60
        )

    well = run()
    assert (well.returncode, "intact, up to 20" in well.stdout) == (0, True)
    whole = file.read_text(encoding="utf-8")
    file.write_text("".join(whole.splitlines(keepends=True)[:-1]), encoding="utf-8")
    assert "the export is cut off" in run().stderr
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
