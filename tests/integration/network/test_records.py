"""What is on record of connections when the gateway is killed in their midst."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from gateway.client import AuditRecord, Client
from gateway.client.audit import AuditQuery
from tests.gateway_process import Home, airlock, make_home, served
from tests.security.network.loopback_door import echo_bytes
from tests.unit.gateway.network.relayed import Server

ENV = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
RULES = """\
version: 1
rules:
  - {id: files, tools: [read, write], paths: [/**], effect: allow, reason: Any file.}
  - {id: commands, tools: [execute], effect: allow, reason: Anything runs.}
  - {id: site, tools: [connect], hosts: [localhost], effect: allow, reason: The tests' own servers.}
"""
OPERATOR = """\
version: 1
rules:
  - {id: loopback, tools: [connect], hosts: [127.0.0.0/8], effect: allow, reason: The tests' own servers.}
"""
# Holds tunnels until the proxy ends them; one more is over before.
TUNNELS = r"""
import os, socket
def tunnel():
    made = socket.create_connection(("127.0.0.1", int(os.environ["HTTP_PROXY"].rsplit(":", 1)[1])))
    made.sendall(b"CONNECT localhost:%d HTTP/1.1\r\n\r\n")
    assert b" 200 " in made.recv(1000)
    made.sendall(b"\0x")
    assert made.recv(2) == b"\0x"
    return made
kept = [tunnel() for _ in range(3)]
tunnel().close()
for one in kept:
    one.recv(1)
"""


def made(directory: Path) -> Home:
    home = make_home(directory)
    home.configure(sandbox={"engine": "memory"}, operator_policy="policies/operator.yaml")
    (directory / "policies" / "default.yaml").write_text(RULES)
    (directory / "policies" / "operator.yaml").write_text(OPERATOR)
    return home


async def connections(home: Home, address: str) -> Sequence[AuditRecord]:
    async with Client(address, home.make_key("default", "audit")) as auditor:
        return (await auditor.audit(AuditQuery(kinds=("connection",))))[::-1]


async def test_connections_that_were_open_when_the_gateway_was_killed_are_on_record_afterwards(
    tmp_path: Path, database_url: str
) -> None:
    home = await asyncio.to_thread(made, tmp_path)
    home.store_in(database_url)
    server = Server(echo_bytes)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]

    async def until_recorded() -> None:
        query = "SELECT (SELECT count(*) FROM open_connections), count(*) FROM audit_records WHERE kind = 'connection'"
        async with asyncio.timeout(60):
            while await asyncio.to_thread(home.rows, query) != [(3, 1)]:
                await asyncio.sleep(0.05)

    async with listening:
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as client:
                command = {"command": f"python3 -c '{TUNNELS % port}'"}
                running = asyncio.create_task(client.call_tool("execute", command, thread="t"))
                await until_recorded()
                await asyncio.to_thread(gateway.kill)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert await asyncio.to_thread(home.rows, "SELECT count(*) FROM open_connections") == [(3,)]
        with served(home, ENV) as gateway:
            recorded = await connections(home, gateway.address)
            asked = [
                "network",
                "log",
                "--json",
                "--address",
                gateway.address,
                "--key",
                home.make_key("default", "audit"),
            ]
            shown = await asyncio.to_thread(airlock, *asked)
            verified = await asyncio.to_thread(airlock, "audit", "verify", "--config", str(home.config))
        assert await asyncio.to_thread(home.rows, "SELECT count(*) FROM open_connections") == [(0,)]
    assert [one.outcome for one in sorted(recorded, key=lambda one: one.verdict)] == [
        "completed",
        "interrupted",
        "interrupted",
        "interrupted",
    ]
    over, *lost = recorded
    for one in lost:
        assert (one.thread, one.call_id, one.verdict, one.rule) == ("t", over.call_id, "allow", "site")
        details = json.loads(one.details)
        assert details == json.loads(over.details) | {"bytes_up": None, "bytes_down": None}
        assert one.at_us <= over.at_us, "it is of when they were dialled"
    assert [json.loads(line)["bytes_up"] for line in shown.stdout.splitlines()] == [None, None, None, 2]
    assert verified.returncode == 0
