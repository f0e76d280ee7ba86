"""The audit of a real gateway: what it tells of calls, programs, files and processes, and the command line."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway.client import AuditQuery, Client, PermissionDenied
from tests.gateway_process import Home, airlock, make_home, served


def audit_key(home: Home) -> str:
    return home.make_key("default", "tool", "files", "audit")


async def test_what_is_done_over_the_wire_is_in_the_audit_and_verifies_everywhere(
    tmp_path: Path, database_url: str
) -> None:
    home = make_home(tmp_path / "home")
    home.store_in(database_url)
    key = audit_key(home)
    with served(home) as gateway:
        async with Client(gateway.address, key) as client:
            await client.call_tool("execute", {"command": "echo sk-4711"}, thread="t")
            await client.write_file("t", "/workspace/a", b"x" * 1000)
            assert await client.read_file("t", "/workspace/a") == b"x" * 1000
            await client.run_program(["true"], thread="t")
            process = await client.start_process(["sleep", "600"], thread="t")
            await client.signal_process("t", process.id, 15)
            await client.remove_process("t", process.id)
            with pytest.raises(PermissionDenied):
                await client.read_file("t", "/etc/shadow")
            records = list(reversed(await client.audit(AuditQuery(thread="t"))))
            assert (await client.verify_audit()).whole
        reported = [(record.kind, record.verdict, record.size_bytes) for record in records]
        assert reported[0] == ("tool_call", "allow", 8)
        assert reported[1:3] == [("file_write", "allow", 1000), ("file_read", "allow", 1000)]
        assert reported[3][:2] == ("program", "allow")
        assert reported[4][:2] == ("process", "allow")
        assert [json.loads(record.details).get("operation") for record in records[5:7]] == ["signal", "remove"]
        assert reported[-1][:2] == ("file_read", "deny")
        assert len({record.actor for record in records}) == 1
        assert not any("sk-4711" in record.line() for record in records)  # a digest may well hold the digits
        env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": key}
        asked = await asyncio.to_thread(airlock, "audit", "query", "--kind", "tool_call", "--json", env=env)
        assert json.loads(asked.stdout)["details"] == {"exit_code": 0}
        file = tmp_path / "audit.jsonl"
        await asyncio.to_thread(airlock, "audit", "export", "--to", str(file), env=env)
        report = json.loads((await asyncio.to_thread(airlock, "audit", "verify", "--json", env=env)).stdout)
        assert report["whole"]
    offline = json.loads(airlock("audit", "verify", "--file", str(file), "--json").stdout)
    assert (offline["whole"], offline["last_digest"]) == (True, report["last_digest"])
    direct = airlock("audit", "verify", "--config", str(home.config), "--tenant", "default", "--json")
    assert json.loads(direct.stdout)["whole"]


def keys(directory: Path) -> tuple[Path, Path]:
    """Make a key to sign with and its public half."""
    private, public = directory / "anchor.key", directory / "anchor.pub"
    key = Ed25519PrivateKey.generate()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


async def test_a_gateway_anchors_its_audit_and_what_the_owner_of_the_database_cuts_off_is_found(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    home = make_home(tmp_path / "home")
    anchors = tmp_path / "anchors.jsonl"
    section = {"anchor": {"file": str(anchors), "key_file": str(private), "every_s": 1}}
    home.config.write_text(f"{home.config.read_text()}\naudit: {json.dumps(section)}\n", encoding="utf-8")
    key = audit_key(home)
    with served(home) as gateway:
        async with Client(gateway.address, key) as client:
            for _ in range(3):
                await client.call_tool("ls", {"path": "/workspace"}, thread="t")
        env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": key}
    of_tenant = ("audit", "verify", "--tenant", "default", "--anchor", str(anchors), "--anchor-key", str(public))
    offline = (*of_tenant, "--config", str(home.config), "--json")
    assert json.loads(airlock(*offline).stdout)["whole"]
    database = sqlite3.connect(home.config.parent / "state" / "airlock.db")
    found = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'audit%'"
    guards = dict(database.execute(found).fetchall())
    for name in guards:
        database.execute(f"DROP TRIGGER {name}")
    database.execute("DELETE FROM audit_records WHERE tenant = 'default' AND sequence > 1")
    database.execute(
        "UPDATE audit_heads SET sequence = 1, digest = (SELECT digest FROM audit_records WHERE tenant = 'default') "
        "WHERE tenant = 'default'"
    )
    for statement in guards.values():
        database.execute(statement)
    database.commit()
    database.close()
    whole = airlock("audit", "verify", "--config", str(home.config), "--tenant", "default", "--json")
    assert json.loads(whole.stdout)["whole"]
    cut = airlock(*offline, check=False)
    assert (cut.returncode, json.loads(cut.stdout)["problem"].partition(":")[0]) == (1, "cut off")
    with served(home) as gateway:
        env["AIRLOCK_ADDRESS"] = gateway.address
        asked = await asyncio.to_thread(airlock, *of_tenant, "--json", env=env, check=False)
        assert (asked.returncode, json.loads(asked.stdout)["problem"].partition(":")[0]) == (1, "cut off")


def test_a_tenant_that_is_not_there_has_no_audit_to_verify(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    asked = airlock("audit", "verify", "--config", str(home.config), "--tenant", "typo", "--json", check=False)
    assert asked.returncode != 0
    assert "tenant 'typo' is not configured" in asked.stdout + asked.stderr
