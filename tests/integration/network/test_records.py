"""What a service sees of its run's connections, and what is on record when the gateway is killed in their midst."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from airlock.audit import AuditQuery
from gateway.client import AuditRecord, Client
from tests.gateway_process import Home, airlock, make_home, served
from tests.security.network.loopback_door import echo_bytes
from tests.unit.gateway.network.relayed import OK, Server, saying

ENV = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "OPENAI_API_KEY": "none"}
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


async def test_a_run_s_events_say_what_its_calls_connected_to_and_what_was_refused(tmp_path: Path) -> None:
    site = Server(saying(OK))
    listening = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    url = f"http://localhost:{port}/a http://elsewhere.test/"
    command = f"unset NO_PROXY no_proxy; for url in {url}; do curl -sS $url; done"
    turns = [Turn(calls=(Call("execute", {"command": command}),)), Turn(say="Done.")]
    async with listening, ScriptedModelServer(turns) as model:
        home = await asyncio.to_thread(made, tmp_path)
        home.configure(model={"base_url": model.base_url, "name": "scripted"})
        with served(home, ENV) as gateway:
            async with Client(gateway.address, home.key) as client, asyncio.timeout(60):
                events = [event async for event in client.run("fetch it", thread="t")]
                (run,) = [run async for run in client.list_runs(thread="t")]
            recorded = await connections(home, gateway.address)
        assert model.failures == []
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    names = [event.type for event in events]
    assert names.index("tool_call_started") < names.index("connection_ended")
    assert names[-1] == "run_finished"
    (finished,) = [event.payload for event in events if event.type == "tool_call_finished"]
    said = sorted(
        (event.payload for event in events if event.type == "connection_ended"), key=lambda one: one["verdict"]
    )
    assert [(one["host"], one["port"], one["verdict"], one["rule"], one["outcome"]) for one in said] == [
        ("localhost", port, "allow", "site", "completed"),
        ("elsewhere.test", 80, "deny", "default-deny", "policy_denied"),
    ]
    assert {one["call_id"] for one in said} == {finished["call_id"]}
    assert [one["bytes_down"] > 0 for one in said] == [True, False]
    assert [bool(one["reason"]) for one in said] == [False, True]
    # The audit says the same.
    assert [(one.run_id, one.call_id, one.outcome) for one in sorted(recorded, key=lambda one: one.verdict)] == [
        (run.id, finished["call_id"], one["outcome"]) for one in said
    ]


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
