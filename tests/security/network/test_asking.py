"""Connections that an approver is asked about, and policies that change under those that are open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import gateway.network.decision
import gateway.network.door
from gateway.errors import Unavailable
from gateway.storage.approval_store import Approval, NewGrant, Resolution
from tests.security.network.loopback_door import (
    LOOPBACK,
    WAIT_S,
    LoopbackDoor,
    allow,
    body,
    closed,
    connect,
    echo_bytes,
    get,
    policy,
    socks,
    status,
)
from tests.unit.gateway.network.relayed import OK, Server, answer, saying

ASK = {"tools": ["connect"], "effect": "ask"}
DENY = {"tools": ["connect"], "effect": "deny"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.network.decision, "_POLL_S", 0.01)
    monkeypatch.setattr(gateway.network.door, "_WATCH_S", 0.02)


@pytest.fixture
async def server(door: LoopbackDoor) -> Server:
    door.policy = policy(ASK | {"hosts": ["a.test", "b.test"]}, allow("free.test"))
    return await door.serve(echo_bytes, "a.test", "b.test", "free.test")


async def pending(door: LoopbackDoor, count: int = 1) -> list[Approval]:
    """Return the pending approvals, once there are so many."""
    async with asyncio.timeout(WAIT_S):
        while True:
            store = door.door.policy.approvals
            found = await store.page("acme", status="pending", thread=None, run_id=None, before=None, limit=100)
            if len(found) >= count:
                assert len(found) == count
                return list(found)
            await asyncio.sleep(0.005)


async def resolve(door: LoopbackDoor, approval: Approval, status_: str, answer_: str, grant: str = "") -> None:
    granted = NewGrant(f"grant_{approval.id}", grant, None) if grant else None
    said = Resolution(status_, answer_, "approver", "not today", grant=granted)
    assert await door.door.policy.approvals.resolve(approval, said)


async def asking(door: LoopbackDoor, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await door.connect()
    writer.write(request)
    return reader, writer


async def works(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00ping")
    assert await asyncio.wait_for(reader.readexactly(5), WAIT_S) == b"\x00ping"


async def test_a_connection_waits_and_one_approval_lets_one_pass(door: LoopbackDoor, server: Server) -> None:
    for way in (connect, socks):
        reader, writer = await asking(door, way("a.test", server.port))
        (approval,) = await pending(door)
        assert (approval.tool, approval.rule, approval.thread) == ("connect", "r0", "t")
        assert f'"host": "a.test", "port": {server.port}, "command": "curl"' in approval.arguments
        await works(*await door.tunnel("free.test", server.port))  # others need not wait
        assert server.connections == (1 if way is connect else 3)
        await resolve(door, approval, "approved", "allow_once")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n") if way is connect else reader.readexactly(12), WAIT_S)
        await works(reader, writer)
    await asking(door, connect("a.test", server.port))
    await pending(door)  # asked anew


async def test_the_same_target_twice_is_asked_about_once_and_each_needs_its_own_answer(
    door: LoopbackDoor, server: Server
) -> None:
    both = [await asking(door, connect("a.test", server.port)) for _ in range(2)]
    (approval,) = await pending(door)
    await asyncio.sleep(0.05)
    await pending(door)
    await resolve(door, approval, "approved", "allow_once")
    (again,) = await pending(door)
    assert again.id != approval.id
    assert server.connections == 1
    await resolve(door, again, "approved", "allow_once")
    for reader, writer in both:
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)).startswith(b"HTTP/1.1 200")
        await works(reader, writer)


async def test_an_answer_for_the_thread_lets_all_pass_and_only_that_target(door: LoopbackDoor, server: Server) -> None:
    both = [await asking(door, connect("a.test", server.port)) for _ in range(2)]
    (approval,) = await pending(door)
    assert approval.proposed_rule is not None
    await resolve(door, approval, "approved", "allow_thread", approval.proposed_rule)
    for reader, writer in both:
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        await works(reader, writer)
    await works(*await door.tunnel("a.test", server.port))
    await asking(door, connect("b.test", server.port))
    assert '"b.test"' in (await pending(door))[0].arguments


async def test_a_grant_that_is_revoked_lets_nothing_pass_any_more(door: LoopbackDoor, server: Server) -> None:
    first = asyncio.create_task(door.tunnel("a.test", server.port))
    (approval,) = await pending(door)
    await resolve(door, approval, "approved", "allow_thread", approval.proposed_rule or "")
    await works(*await first)
    assert await door.door.policy.approvals.revoke_grant("acme", f"grant_{approval.id}")
    await asking(door, connect("a.test", server.port))
    await pending(door)


async def test_a_denial_is_in_the_answer_and_in_the_note(door: LoopbackDoor, server: Server) -> None:
    for way in (connect, get):
        waiting = asyncio.create_task(door.ask(way("a.test", server.port)))
        (approval,) = await pending(door)
        await resolve(door, approval, "denied", "deny")
        said = body(await waiting)
        assert (said["error"], said["rule"], said["host"]) == ("policy_denied", "r0", "a.test")
        assert "an approver denied the connection: not today" in said["reason"]
    assert server.connections == 0
    assert "an approver denied" in door.door.notes("call_1")
    assert door.door.notes("call_1") == ""
    assert await door.recorded(2) == [("deny", "r0", "policy_denied")] * 2


async def test_without_an_answer_in_time_it_is_refused(door: LoopbackDoor, server: Server) -> None:
    door.policy = policy(ASK | {"hosts": ["a.test"]}, allow("free.test"), wait_s=0.2)
    said = await door.ask(connect("a.test", server.port))
    assert status(said) == 403
    assert "none was given within 0.2 s" in body(said)["reason"]
    assert "airlock approvals" in body(said)["how_to_allow"]
    assert server.connections == 0
    await works(*await door.tunnel("free.test", server.port))


async def test_only_so_many_wait_and_the_next_is_refused_at_once(door: LoopbackDoor, server: Server) -> None:
    door.policy = policy(ASK | {"hosts": ["a.test", "b.test"]}, allow("free.test"), waiting=2)
    waiting = [await asking(door, connect(host, server.port)) for host in ("a.test", "b.test")]
    await pending(door, 2)
    said = await door.ask(connect("a.test", server.port))
    assert (status(said), "2 connections of this thread already wait" in body(said)["reason"]) == (403, True)
    await works(*await door.tunnel("free.test", server.port))
    waiting[0][1].close()
    await door.recorded(2)
    await asking(door, connect("a.test", server.port))
    async with asyncio.timeout(WAIT_S):
        while len(door.door.policy.waiting) < 2:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("way", [connect, get, socks])
async def test_a_client_that_leaves_while_it_waits_leaves_its_place(
    door: LoopbackDoor, server: Server, way: Any
) -> None:
    door.policy = policy(ASK | {"hosts": ["a.test"]}, waiting=1, connections=2)
    for _ in range(5):
        _, writer = await asking(door, way("a.test", server.port))
        await pending(door)
        async with asyncio.timeout(WAIT_S):
            while not door.door.policy.waiting:
                await asyncio.sleep(0.005)
        writer.close()
        async with asyncio.timeout(WAIT_S):
            while door.door.policy.waiting or door.door._open:
                await asyncio.sleep(0.005)
    await door.recorded(5)
    seen = {(one.verdict, one.rule, one.outcome) for one in door.records}
    assert seen == {("deny", "r0", "withdrawn")}
    (approval,) = await pending(door)  # one, whatever came and went
    await resolve(door, approval, "approved", "allow_once")
    await asyncio.sleep(0.05)
    assert server.connections == 0
    await asking(door, way("a.test", server.port))  # the answer is for whoever asks next
    async with asyncio.timeout(WAIT_S):
        while not server.connections:
            await asyncio.sleep(0.005)


async def test_no_secret_of_a_request_is_in_an_approval_or_a_record(door: LoopbackDoor, server: Server) -> None:
    secret = f"ghp_{'a1B2' * 9}"
    door.policy = policy(ASK | {"hosts": ["a.test"], "url_paths": ["/asked/**"]}, waiting=1)
    door.door.calls[-1] = replace(door.door.calls[-1], command=f"curl -H 'token: {secret}'")
    await asking(door, get("a.test", server.port, f"/asked/{secret}"))
    (approval,) = await pending(door)
    assert "/asked/ghp_[redacted" in approval.arguments
    assert "token: ghp_[redacted" in approval.arguments
    assert approval.proposed_rule is None
    assert secret not in repr(approval)
    await asking(door, get("a.test", server.port, f"/denied/{secret}"))
    await door.recorded(1)
    assert "/denied/ghp_[redacted" in str(door.records[0].details["reason"])
    assert secret not in repr(door.records)


@pytest.mark.parametrize("way", [connect, get])
async def test_a_connection_that_cannot_be_decided_is_a_503_and_denied_on_record(
    door: LoopbackDoor, server: Server, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    async def fail(*_: object) -> None:
        raise Unavailable("no database")

    with monkeypatch.context() as patch:
        patch.setattr(gateway.network.decision, "load_grants", fail)
        assert status(await door.ask(way("a.test", server.port))) == 503
    assert await door.recorded(1) == [("deny", "r0", "failed")]
    await works(*await door.tunnel("free.test", server.port))


async def test_what_a_client_sends_while_it_waits_is_not_lost(door: LoopbackDoor, server: Server) -> None:
    reader, writer = await asking(door, connect("a.test", server.port) + b"\x00early")
    (approval,) = await pending(door)
    writer.write(b" and late")
    await asyncio.sleep(0.03)
    await resolve(door, approval, "approved", "allow_once")
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
    assert await asyncio.wait_for(reader.readexactly(15), WAIT_S) == b"\x00early and late"


async def test_a_wait_is_not_idleness(door: LoopbackDoor, server: Server) -> None:
    door.policy = policy(ASK | {"hosts": ["a.test"]}, idle_s=0.2, total_s=0.3)
    reader, writer = await asking(door, connect("a.test", server.port))
    (approval,) = await pending(door)
    await asyncio.sleep(0.5)
    await resolve(door, approval, "approved", "allow_once")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)).startswith(b"HTTP/1.1 200")
    await works(reader, writer)


# --- a policy that changes ---


async def test_a_policy_that_no_longer_allows_a_tunnel_ends_it_and_one_that_does_lets_it_be(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "a.test", "b.test")
    door.policy = policy(allow("a.test", "b.test"))
    ended, kept = await door.tunnel("a.test", server.port), await door.tunnel("b.test", server.port)
    await works(*ended)
    door.policy = policy(allow("*.test"))
    await asyncio.sleep(0.1)
    await works(*ended)
    door.policy = policy(ASK | {"hosts": ["a.test"]}, allow("b.test"))  # it was allowed when it was asked for
    await asyncio.sleep(0.1)
    await works(*ended)
    door.policy = policy(DENY | {"hosts": ["a.test"]}, allow("b.test"))
    assert await closed(ended[0]) == b""
    assert await door.recorded(1) == [("allow", "r0", "policy_changed")]
    await works(*kept)
    assert status(await door.ask(connect("a.test", server.port))) == 403


async def test_an_operator_who_no_longer_names_an_address_ends_what_goes_there(door: LoopbackDoor) -> None:
    server = await door.serve(echo_bytes, "a.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.tunnel("a.test", server.port)
    door.policy = policy(allow("a.test"), operator=[LOOPBACK, allow("b.test")])
    await asyncio.sleep(0.1)
    await works(reader, writer)
    door.policy = policy(allow("a.test"), operator=[])
    assert await closed(reader) == b""
    assert await door.recorded(1) == [("allow", "r0", "policy_changed")]


async def test_a_policy_ends_plain_http_and_requests_on_kept_connections_too(door: LoopbackDoor) -> None:
    server = await door.serve(saying(OK), "a.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.connect()
    request = f"GET http://a.test:{server.port}/ HTTP/1.1\r\nHost: a.test:{server.port}\r\n\r\n".encode()
    for _ in range(2):
        writer.write(request)
        assert (await answer(reader))[1] == b"ok"
    door.policy = policy(allow("b.test"))
    assert await closed(reader) == b""
    assert await door.recorded(1) == [("allow", "r0", "policy_changed")]


async def test_an_answer_to_an_older_policy_does_not_undo_a_deny(door: LoopbackDoor, server: Server) -> None:
    waiting = asyncio.create_task(door.ask(connect("a.test", server.port)))
    (approval,) = await pending(door)
    door.policy = policy(DENY | {"hosts": ["a.test"]})
    await resolve(door, approval, "approved", "allow_once")
    assert status(await waiting) == 403
    assert server.connections == 0


async def test_a_policy_that_allows_lets_those_pass_that_wait(door: LoopbackDoor, server: Server) -> None:
    waiting = asyncio.create_task(door.tunnel("a.test", server.port))
    await pending(door)
    door.policy = policy(allow("a.test"))
    await works(*await asyncio.wait_for(waiting, WAIT_S))


async def test_an_answer_that_changes_the_host_is_no_answer_for_it(door: LoopbackDoor, server: Server) -> None:
    waiting = asyncio.create_task(door.ask(connect("a.test", server.port)))
    (approval,) = await pending(door)
    said = Resolution(
        "approved", "edit", "approver", edited_arguments='{"host": "b.test", "port": 80}', edited_digest="x"
    )
    assert await door.door.policy.approvals.resolve(approval, said)
    answered = await waiting
    assert (status(answered), "changed the host" in body(answered)["reason"]) == (403, True)
    assert server.connections == 0


async def test_the_note_of_a_call_names_what_was_refused_once_each_and_not_without_end(door: LoopbackDoor) -> None:
    door.policy = policy(allow("a.test"), connections_per_minute=1000)
    for number in range(150):
        await door.ask(connect(f"no{number % 120}.test", 80))
    assert len(door.door.refused["call_1"]) <= 100
    note = door.door.notes("call_1")
    assert note.count("no0.test:80 (rule") == 1
    assert " more" in note
    assert len(note) < 2000
    door.door.calls.clear()  # a process that goes on after its call
    await door.ask(connect("no.test", 80))
    assert door.door.refused == {}


@pytest.mark.parametrize(
    "rule", [{"methods": ["POST"]}, {"url_paths": ["/second"]}, {}], ids=["method", "path", "host"]
)
async def test_a_request_that_is_to_be_asked_about_does_not_pass_behind_another_on_its_connection(
    door: LoopbackDoor, rule: dict[str, Any]
) -> None:
    asked = ASK | {"hosts": ["a.test"], **rule}
    rules = [allow("a.test", methods=["GET"], url_paths=["/first"]), asked] if rule else [asked]
    door.policy = policy(*rules)
    kept = await door.serve(saying(OK), "a.test")
    reader, writer = await door.connect()

    async def send(method: str, path: str) -> None:
        head = f"{method} http://a.test:{kept.port}{path} HTTP/1.1\r\nHost: a.test:{kept.port}\r\nContent-Length: 0\r\n"
        writer.write(f"{head}\r\n".encode())

    await send("GET", "/first")
    if not rule:
        await resolve(door, (await pending(door))[0], "approved", "allow_once")
    assert status((await answer(reader))[0]) == 200
    await send("POST", "/second")
    (approval,) = await pending(door)
    assert '"method": "POST", "path": "/second"' in approval.arguments
    await resolve(door, approval, "approved", "allow_once")
    assert status((await answer(reader))[0]) == 200  # on the same connection
    assert kept.connections == 1
    await send("POST", "/second")
    await resolve(door, (await pending(door))[0], "denied", "deny")
    assert status((await answer(reader))[0]) == 403


async def test_plain_http_in_a_tunnel_is_asked_about_once_for_all_its_requests(door: LoopbackDoor) -> None:
    door.policy = policy(ASK | {"hosts": ["a.test"]})
    kept = await door.serve(saying(OK), "a.test")
    reader, writer = await asking(door, connect("a.test", kept.port))
    await resolve(door, (await pending(door))[0], "approved", "allow_once")
    await reader.readuntil(b"\r\n\r\n")
    for method in ("GET", "POST"):
        writer.write(f"{method} / HTTP/1.1\r\nHost: a.test:{kept.port}\r\nContent-Length: 0\r\n\r\n".encode())
        assert status((await answer(reader))[0]) == 200


async def test_a_connection_ends_when_a_rule_denies_the_address_that_its_name_led_to(
    door: LoopbackDoor, server: Server
) -> None:
    reader, writer = await door.tunnel("free.test", server.port)
    for other in ("93.184.216.0/24", f"127.0.0.1:{server.port + 1}"):
        door.policy = policy(allow("free.test"), DENY | {"hosts": [other]})
        await asyncio.sleep(0.1)
        await works(reader, writer)
    door.policy = policy(allow("free.test"), DENY | {"hosts": [f"127.0.0.1:{server.port}"]})
    assert await closed(reader) == b""
    assert [one[2] for one in await door.recorded(1)] == ["policy_changed"]
