"""The audit of a real gateway: what it tells of calls, programs, files and processes, and the command line."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.client import AuditQuery, Client, PermissionDenied
from tests.gateway_process import Home, airlock, make_home, served


def audit_key(home: Home) -> str:
    scopes = ("tool", "files", "audit")
    options = [option for scope in scopes for option in ("--scope", scope)]
    made = airlock("key", "create", "--tenant", "default", *options, "--config", str(home.config), "--json")
    return str(json.loads(made.stdout)["key"])


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
        told = [(record.kind, record.verdict, record.size_bytes) for record in records]
        assert told[0] == ("tool_call", "allow", 8)
        assert told[1:3] == [("file_write", "allow", 1000), ("file_read", "allow", 1000)]
        assert told[3][:2] == ("program", "allow")
        assert told[4][:2] == ("process", "allow")
        assert [json.loads(record.details).get("operation") for record in records[5:7]] == ["signal", "remove"]
        assert told[-1][:2] == ("file_read", "deny")
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
