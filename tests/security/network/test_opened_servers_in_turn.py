"""A client whose requests need a connection to the server each: what is noted on each is what it carries."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import gateway.network.decision
import gateway.network.door
from gateway.config.network_settings import CredentialSettings
from gateway.errors import Unavailable
from gateway.network.credentials import Caller
from gateway.network.opening import Opening
from tests.security.network.loopback_door import WAIT_S, LoopbackDoor, allow, policy, status
from tests.security.network.loopback_door import get as get_in_plain
from tests.security.network.test_asking import pending, resolve
from tests.security.network.test_opened import opened
from tests.security.network.test_opened_http2 import done, said, secured, serve_http2, speaking
from tests.unit.gateway.network.relayed import OK, answer, saying

FREE = allow("a.test", url_paths=["/free/**", "/v1/**"], methods=["GET", "POST"])
ASK = {"tools": ["connect"], "effect": "ask", "hosts": ["a.test"], "url_paths": ["/ask/**"]}
DENY = {"tools": ["connect"], "effect": "deny", "hosts": ["a.test"], "url_paths": ["/ask/**"]}
LATER = {"tools": ["connect"], "effect": "deny", "hosts": ["a.test"], "url_paths": ["/later"]}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.network.decision, "_POLL_S", 0.01)
    monkeypatch.setattr(gateway.network.door, "_WATCH_S", 0.02)


async def serve_or_begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a GET, and a POST once it is complete; the answer of /ask/long does not end."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"POST"):
        await reader.readuntil(b"0\r\n\r\n")
    if b"/ask/long" not in head:
        writer.write(OK)
    else:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        await reader.read()


@pytest.mark.parametrize("denied", [True, False])
async def test_a_request_that_was_asked_about_ends_by_a_policy_that_denies_it_whatever_was_dialled_meanwhile(
    door: LoopbackDoor, tmp_path: Path, denied: bool
) -> None:
    server = await opened(door, tmp_path, serve_or_begin, FREE, ASK)
    async with speaking(door, server.port, "h2") as client:
        first = client.ask(b"/free/first", method=b"POST", end=False)
        asked = client.ask(b"/ask/long")
        second = client.ask(b"/free/second")
        [waiting] = await pending(door)
        await client.send(first, b"x")
        assert [said(await done(client, stream))[0] for stream in (first, second)] == [200, 200]
        await resolve(door, waiting, "approved", "allow_once")
        async with asyncio.timeout(WAIT_S):
            while client.got[asked].body != b"begun":
                await asyncio.sleep(0.005)
        door.policy = policy(FREE, ASK, DENY if denied else LATER)
        if denied:
            await asyncio.wait_for(client.closed.wait(), WAIT_S)
        else:
            async with asyncio.timeout(WAIT_S):
                while any(one.checked_by is not door.policy for one in door.door._open):
                    await asyncio.sleep(0.005)
            assert not client.closed.is_set()
    records = await door.recorded(3)
    assert records[:2] == [("allow", "r0", "completed")] * 2
    assert records[2][:2] == ("allow", "r1")
    assert (records[2][2] == "policy_changed") == denied


async def test_a_request_that_a_policy_denies_while_it_waits_for_its_turn_reaches_no_server(
    door: LoopbackDoor, tmp_path: Path
) -> None:
    paths: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        paths.append(line.split()[1])
        if line.startswith(b"POST"):
            await reader.readuntil(b"0\r\n\r\n")
        writer.write(OK)

    server = await opened(door, tmp_path, note, FREE, allow("a.test", url_paths=["/ask/**"]))
    async with speaking(door, server.port, "h2") as client:
        first = client.ask(b"/free/first", method=b"POST", end=False)
        turns = [client.ask(b"/ask/now"), client.ask(b"/free/second")]
        async with asyncio.timeout(WAIT_S):
            while not paths:  # the others were judged by then, too
                await asyncio.sleep(0.005)
        door.policy = policy(FREE, DENY)
        await client.send(first, b"x")
        assert [said(await done(client, stream))[0] for stream in (first, *turns)] == [200, 403, 200]
    assert paths == [b"/free/first", b"/free/second"]
    assert ("deny", "r1", "policy_denied") in await door.recorded(3)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_credential_is_on_the_record_of_the_connection_that_carried_it(
    door: LoopbackDoor, tmp_path: Path, protocol: str
) -> None:
    carried: list[bool] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carried.append(b"the-real-token" in await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    server = await opened(door, tmp_path, serve_one, FREE)
    (tmp_path / "secret").write_text("the-real-token-0123")
    found = {"name": "api", "env": "T", "hosts": [f"a.test:{server.port}"], "path_prefixes": ["/v1"]}
    settings = CredentialSettings.model_validate({**found, "secret": {"file": str(tmp_path / "secret")}})
    opening = Opening("acme", [settings], b"secret", door.door.opening.trust)
    door.door.opening = opening
    bearer = b"Bearer " + opening.credentials.environment(Caller("agent", "execute"))["T"].encode()
    if protocol == "h2":
        async with speaking(door, server.port, "h2") as client:
            streams = [client.ask(b"/free/a"), client.ask(b"/v1/b", (b"authorization", bearer)), client.ask(b"/free/c")]
            assert [said(await done(client, stream))[0] for stream in streams] == [200] * 3
            await asyncio.wait_for(client.closed.wait(), WAIT_S)
    else:
        reader, writer = await secured(door, server.port, ["http/1.1"], "http/1.1")
        for path, more in ((b"/free/a", b""), (b"/v1/b", b"Authorization: %b\r\n" % bearer), (b"/free/c", b"")):
            writer.write(b"GET %b HTTP/1.1\r\nHost: a.test:%d\r\n%b\r\n" % (path, server.port, more))
            assert (await answer(reader))[1] == b"ok"
        writer.close()
    await door.recorded(3)
    assert sorted(carried) == [False, False, True]
    assert [one.details.get("credential") == "api" for one in door.records] == carried


@pytest.mark.parametrize("protocol, error", [("h2", Unavailable("no database")), ("http/1.1", ValueError("a fault"))])
async def test_a_request_that_cannot_be_decided_is_a_503_and_on_record_and_the_next_is_decided(
    door: LoopbackDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, error: Exception
) -> None:
    server = await opened(door, tmp_path, serve_http2, FREE, ASK, alpn=(protocol,))
    if protocol == "http/1.1":
        server = await door.serve(saying(OK), "a.test")

    async def fail(*_: object) -> None:
        raise error

    async with AsyncExitStack() as stack:
        if protocol == "h2":
            client = await stack.enter_async_context(speaking(door, server.port))

        async def get(path: str) -> tuple[int, bytes]:
            if protocol == "h2":
                return said(await client.get(path.encode()))
            got = await door.ask(get_in_plain("a.test", server.port, path))
            return status(got), got.partition(b"\r\n\r\n")[2]

        with monkeypatch.context() as patch:
            patch.setattr(gateway.network.decision, "load_grants", fail)
            code, body = await get("/ask/now")
            assert (code, json.loads(body)["error"]) == (503, "failed")
            assert await door.recorded(1) == [("deny", "r1", "failed")]
            assert (await get("/free/now"))[0] == 200
        asking = asyncio.create_task(get("/ask/now"))
        [waiting] = await pending(door)
        await resolve(door, waiting, "approved", "allow_once")
        assert (await asyncio.wait_for(asking, WAIT_S))[0] == 200
    records = await door.recorded(2 if protocol == "h2" else 3)
    assert records[1:] == [("allow", "r0", "completed"), ("allow", "r1", "completed")][: len(records) - 1]
