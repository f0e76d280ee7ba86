"""What is on record of connections and when, and what a run's events say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import gateway.network.connection_records
import gateway.network.door
from agent.events import Event
from gateway.errors import Unavailable
from gateway.network.decision import CallUnderWay, ConnectionPolicy, Target
from gateway.network.outgoing import Outgoing
from gateway.policy.decision import Decision
from gateway.storage.audit_store import AuditEntry
from gateway.support.current_tenant import CURRENT_TENANT
from tests.security.network.loopback_door import (
    CALL,
    WAIT_S,
    LoopbackDoor,
    allow,
    connect,
    echo_bytes,
    get,
    policy,
    status,
)
from tests.unit.gateway.network.relayed import OK, answer, saying

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


async def test_what_reached_a_server_is_on_record_however_much_was_refused_before(door: LoopbackDoor) -> None:
    async def broken(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)  # and ends without an answer

    measured: list[int] = []

    async def measure(one: Outgoing) -> None:
        measured.append(one.bytes_up)

    server, other = await door.serve(saying(OK), "a.test"), await door.serve(broken, "b.test")
    door.door.records.measured = measure
    door.policy = policy(allow("a.test", methods=["GET"]), allow("b.test"), connections_per_minute=5)
    reader, writer = await door.connect()
    where = f"a.test:{server.port}"
    for method in ("GET", *["DELETE"] * 20):
        writer.write(f"{method} http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
        await answer(reader)
    await door.recorded(5)  # of twenty refusals
    sent = get("b.test", other.port, "/", "Content-Length: 100000", method="POST") + bytes(100_000)
    assert status(await door.ask(sent)) == 502
    await door.recorded(6)
    await door.door.records.written()
    (entry,) = [entry for entry in door.records if entry.details["host"] == "b.test"]
    assert (entry.outcome, entry.details["over_limit_before"]) == ("bad_gateway", 15)
    assert max(measured) > 100_000


async def test_a_method_without_end_is_refused_and_not_on_record(door: LoopbackDoor) -> None:
    server = await door.serve(saying(OK), "a.test")
    door.policy = policy(allow("a.test"))
    assert status(await door.ask(get("a.test", server.port, method="X" * 32))) == 200
    assert status(await door.ask(get("a.test", server.port, method="X" * 33))) == 501
    assert await door.recorded(1) == [("allow", "r0", "completed")]


async def test_a_connection_that_cannot_be_counted_has_no_other_stay_open_on_record(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Outgoing) -> None:
        raise Unavailable("the quota's table is locked")

    monkeypatch.setattr(gateway.network.connection_records, "_TOGETHER_S", NEVER_S)
    server, records = await door.serve(echo_bytes, "a.test"), door.door.records
    door.policy = policy(allow("a.test"))
    records.measured = fail
    _, first = await door.tunnel("a.test", server.port)
    await records.written()
    first.close()
    _, second = await door.tunnel("a.test", server.port)
    async with asyncio.timeout(WAIT_S):
        while not (records._over and records._new):
            await asyncio.sleep(0.005)
    await records.written()  # that the first has ended and the second began
    second.close()
    async with asyncio.timeout(WAIT_S):
        while not records._over:
            await asyncio.sleep(0.005)
    await records.written()
    assert (len(door.records), door.records.open) == (2, {})


async def test_requests_that_wait_for_their_server_are_judged_once_by_a_policy(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.policy = policy(allow("a.test"))
    targets = [Target("a.test", 1, "GET", (f"/{number}",)) for number in range(50)]
    one = door.door.request(targets[0])
    for target in targets:
        one.carries(door.door.request(target), alone=False)
    judged: list[Target] = []
    judge = ConnectionPolicy.judge

    def counted(self: ConnectionPolicy, target: Target, call: CallUnderWay, grants: Any = None) -> Decision:
        judged.append(target)
        return judge(self, target, call, grants)

    monkeypatch.setattr(ConnectionPolicy, "judge", counted)
    assert [await one.still_allowed() for _ in range(3)] == [True] * 3
    assert len(judged) == 50
    door.policy = policy(allow("b.test"))
    assert not await one.still_allowed()


async def test_requests_are_judged_anew_as_work_of_their_tenant_and_one_at_a_time(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.network.door, "_WATCH_S", 0.02)
    rules = [allow("a.test", methods=["GET"]), allow("b.test")]
    door.policy = policy(*rules)
    server = await door.serve(echo_bytes, "b.test")
    await door.tunnel("b.test", server.port)
    (one,) = door.door._open
    one.requests = frozenset(Target("a.test", 1, "GET", (f"/{number}",)) for number in range(50))
    turns, seen = 0, list[tuple[str | None, int]]()
    judge = ConnectionPolicy.judge

    def noted(self: ConnectionPolicy, target: Target, call: CallUnderWay, grants: Any = None) -> Decision:
        seen.append((CURRENT_TENANT.get(), turns))
        return judge(self, target, call, grants)

    monkeypatch.setattr(ConnectionPolicy, "judge", noted)
    door.policy = policy(*rules)
    async with asyncio.timeout(WAIT_S):
        while len(seen) < 50:
            await asyncio.sleep(0)
            turns += 1
    assert {tenant for tenant, _ in seen} == {"acme"}
    assert len({turn for _, turn in seen}) == 50


async def test_too_many_requests_are_not_judged_and_stay_while_the_policy_does(
    door: LoopbackDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.policy = policy(allow("a.test"))
    one = door.door.request(Target("a.test", 1))
    await one.decide()
    one.requests = None
    monkeypatch.setattr(ConnectionPolicy, "judge", None)
    door.policy = policy(allow("a.test"))
    assert await one.still_allowed()
    door.policy = policy(allow("a.test"), allow("b.test"))
    assert not await one.still_allowed()


async def test_of_more_requests_than_a_hundred_none_is_kept(door: LoopbackDoor) -> None:
    targets = [Target("a.test", 1, "GET", (f"/{number}",)) for number in range(101)]
    one = door.door.request(targets[0])
    for target in targets[:100]:
        one.carries(door.door.request(target), alone=False)
    assert one.requests == frozenset(targets[:100])
    for target in targets[100:] + targets[:1]:
        one.carries(door.door.request(target), alone=False)
        assert one.requests is None
    one.carries(door.door.request(targets[0]), alone=True)
    assert one.requests == {targets[0]}
