"""Names that lead elsewhere the next time: a real gateway that asks a real name server, as its C library does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from airlock.audit import AuditQuery
from gateway.client import Client
from tests.gateway_process import make_home, served
from tests.own_files import needs_own_files, seeing
from tests.security.network.loopback_door import echo_bytes
from tests.security.network.name_server import name_server
from tests.security.network.test_sandbox import NO_DOCKER, RULES, run
from tests.unit.gateway.network.relayed import Server

TENANT = RULES.replace("network: {", "network: {connect_s: 2, ") + (
    "  - {id: names, tools: [connect], hosts: [moving.test, many.test, silent.test, nowhere.test], effect: allow, "
    "reason: Names of the tests.}\n"
)
OPERATOR = """\
version: 1
rules:
  - {{id: server, tools: [connect], hosts: ["127.0.0.1:{port}"], effect: allow, reason: The tests' own server.}}
"""
# What each way of asking for it says: a tunnel that echoes, or the error in the body.
SCRIPT = """
import json
def said(name):
    s, head = tunnel(name, PORT)
    if b" 200 " not in head.partition(b"\\r")[0]:
        return json.loads(rest(s))["error"]
    s.sendall(b"\\0x"); s.shutdown(socket.SHUT_WR)
    return rest(s).decode()[1:]
print(*map(said, NAMES))
"""


@needs_own_files
async def test_a_name_is_looked_up_once_and_dialled_where_it_was_checked(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path)
    named, other = Server(echo_bytes), Server(echo_bytes)
    async with (
        name_server(tmp_path) as (names, files),
        await asyncio.start_server(named.serve, "127.0.0.1", 0) as listening,
        # Where a second look-up would lead, the same port is open.
        await asyncio.start_server(other.serve, "127.0.0.2", port := listening.sockets[0].getsockname()[1]),
    ):
        home.configure(sandbox={"engine": "memory"}, operator_policy="policies/operator.yaml")
        (tmp_path / "policies" / "default.yaml").write_text(TENANT)
        (tmp_path / "policies" / "operator.yaml").write_text(OPERATOR.format(port=port))
        names.names |= {
            "moving.test": [("127.0.0.1",), ("127.0.0.2",), ("10.0.0.1",), ("127.0.0.1",), ("127.0.0.2",)],
            "many.test": [("169.254.169.254", "10.0.0.1", "127.0.0.2", "127.0.0.1")],
            "silent.test": [()],
        }
        wanted = [*["moving.test"] * 5, "many.test", "nowhere.test", "silent.test", "unnamed.test"]
        key = home.make_key("default", "audit")
        with served(home, NO_DOCKER, within=seeing(files)) as gateway:
            async with Client(gateway.address, home.key) as client, Client(gateway.address, key) as auditor:
                done = await run(client, f"PORT, NAMES = {port}, {wanted}\n{SCRIPT}")
                records = await auditor.audit(AuditQuery(kinds=("connection",)))
    refused = "policy_denied"
    assert done.content.split() == [
        *("x", refused, refused, "x", refused),
        *("x", "unresolved", "timed_out", refused),
    ]
    assert (named.connections, other.connections) == (3, 0)
    assert {address for one in records if (address := json.loads(one.details)["address"])} == {"127.0.0.1"}
    # A name that no rule allows is not even looked up, and each other one once.
    assert names.asked == wanted[:-1]
