"""What is on record of connections and when, and what a run's events say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

import gateway.network.connection_records
import gateway.network.door
from agent.events import Event
from gateway.errors import Unavailable
from gateway.storage.audit_store import AuditEntry
from tests.security.network.loopback_door import CALL, WAIT_S, LoopbackDoor, allow, connect, echo_bytes, get, policy
from tests.unit.gateway.network.relayed import OK, saying

NEVER_S = 3600.0


async def fetch(door: LoopbackDoor, port: int) -> None:
    """Do what a program does that asks for one page and ends."""
    reader, writer = await door.connect()
    writer.write(get("a.test", port))
    assert b"ok" in await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()


async def until_open(door: LoopbackDoor, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(door.records.open) != count:
            await asyncio.sleep(0.005)


async def test_an_open_tunnel_is_on_record_as_what_becomes_of_it_if_the_gateway_is_lost(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.tunnel("a.test", server.port)
    writer.write(b"\x00x")
    assert await reader.readexactly(2) == b"\x00x"
    await until_open(door, 1)
    (entry,) = door.records.open.values()
    assert (entry.tenant, entry.thread, entry.call_id, entry.verdict) == ("acme", "t", "call_1", "allow")
    assert (entry.outcome, entry.size_bytes, entry.duration_us) == ("interrupted", 0, 0)
    known = {"host": "a.test", "port": server.port, "address": "127.0.0.1", "agent": "agent"}
    assert entry.details == {**known, "bytes_up": None, "bytes_down": None}
    writer.close()
    await until_open(door, 0)
    (over,) = door.records
    assert (over.outcome, over.details) == ("completed", {**known, "bytes_up": 2, "bytes_down": 2})


async def test_connections_of_a_moment_share_one_write_and_the_end_of_their_call_waits_for_it(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.network.connection_records, "_TOGETHER_S", NEVER_S)
    monkeypatch.setattr(gateway.network.door, "_ENDING_S", WAIT_S)
    written: list[int] = []
    write = door.records.write

    async def counted(opened: Mapping[str, AuditEntry], ended: Sequence[tuple[str, AuditEntry | None]]) -> None:
        written.append(len(ended))
        assert not opened, "it is over: its record is enough"
        await write(opened, ended)

    monkeypatch.setattr(door.records, "write", counted)
    server = await door.serve(saying(OK), "a.test")
    door.policy = policy(allow("a.test"))
    async with door.door.entered(replace(CALL, call_id="call_2")):
        for _ in range(5):
            await fetch(door, server.port)
        assert b"403" in await door.ask(connect("no.test", 80))
        assert not written
    assert written == [6]
    assert {entry.call_id for entry in door.records} == {"call_2"}
    assert [entry.verdict for entry in door.records] == 5 * ["allow"] + ["deny"]


async def test_the_end_of_a_call_does_not_wait_for_what_it_left_open(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"))
    async with asyncio.timeout(WAIT_S):
        async with door.door.entered(CALL):
            reader, writer = await door.tunnel("a.test", server.port)
    assert len(door.records.open) == 1
    writer.write(b"\x00x")
    assert await reader.readexactly(2) == b"\x00x"


@pytest.mark.parametrize("error", [Unavailable("the disk is full"), ValueError("a fault")])
async def test_what_cannot_be_written_costs_neither_connections_nor_calls_anything(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"))
    write, refused = door.records.write, asyncio.Event()

    async def full(*_: object) -> None:
        refused.set()
        raise error

    monkeypatch.setattr(door.records, "write", full)
    async with door.door.entered(CALL):
        reader, writer = await door.tunnel("a.test", server.port)
    assert refused.is_set()
    monkeypatch.setattr(door.records, "write", write)
    writer.write(b"\x00x")
    assert await reader.readexactly(2) == b"\x00x"
    writer.close()
    assert await door.recorded(1) == [("allow", "r0", "completed")]


async def test_a_run_s_events_have_what_is_on_record_and_no_more_of_a_flood(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.network.door, "_OVER_LIMIT_S", NEVER_S)
    monkeypatch.setattr(gateway.network.door, "_ENDING_S", WAIT_S)
    events: list[Event] = []
    server = await door.serve(saying(OK), "a.test")
    door.policy = policy(allow("a.test"), connections_per_minute=4)
    async with door.door.entered(replace(CALL, call_id="call_2", run_id="run_1", events=events.append)):
        await fetch(door, server.port)
        await door.recorded(1)
        for _ in range(20):
            await door.ask(connect("no.test", 80))
        door.policy = policy(allow("a.test"), connections_per_minute=5)
        await fetch(door, server.port)
    assert len(events) == len(door.records) == 6
    for event, entry in zip(events, door.records, strict=True):
        event.typed()
        said, details = event.payload, entry.details
        assert event.type == "connection_ended"
        assert said["call_id"] == entry.call_id == "call_2"
        for name in ("verdict", "rule", "policy_version", "outcome"):
            assert said[name] == getattr(entry, name)
        for name in ("host", "port", "bytes_up", "bytes_down"):
            assert said[name] == details[name]
        for name in ("method", "reason", "credential", "over_limit_before"):
            assert said[name] == details.get(name, type(said[name])())
    first, *refused, over, last = (event.payload for event in events)
    assert (first["host"], first["method"], first["verdict"], first["outcome"]) == (
        "a.test",
        "GET",
        "allow",
        "completed",
    )
    assert {(one["host"], one["rule"], one["outcome"]) for one in refused} == {
        ("no.test", "default-deny", "policy_denied")
    }
    assert (over["outcome"], last["over_limit_before"]) == ("too_many_connections", 20 - 3 - 1)
