"""The gateway's own connections pass the door like tool code's, and neither is taken for the other."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from gateway.config.network_settings import CredentialSettings
from gateway.network.credentials import Caller, Credentials
from gateway.network.decision import CallUnderWay, Target
from gateway.network.own_connections import OwnConnections
from tests.security.network.loopback_door import CALL, LoopbackDoor, allow, policy

OWN = CallUnderWay("call_2", "", "agent", "tracker/*")


async def _asked(door: LoopbackDoor, host: str, port: int) -> bytes:
    loop = asyncio.get_running_loop()
    with closing(OwnConnections(door.door, OWN).connect()) as connection:
        await loop.sock_sendall(connection, f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        return await asyncio.wait_for(loop.sock_recv(connection, 4096), 20)


async def test_they_are_judged_resolved_and_recorded_by_the_same_door(door: LoopbackDoor) -> None:
    door.policy = policy(allow("good.example", "inside.example"), operator=())
    door.names["inside.example"] = [["10.0.0.1"]]
    assert b"403" in await _asked(door, "bad.example", 443)
    assert b"private" in await _asked(door, "inside.example", 443)
    seen = await door.recorded(2)
    assert [(verdict, outcome) for verdict, _, outcome in seen] == [("deny", "policy_denied")] * 2
    assert {one.call_id for one in door.records} == {OWN.call_id}


async def test_they_count_against_the_same_limits(door: LoopbackDoor) -> None:
    door.policy = policy(allow("good.example"), connections_per_minute=1)
    door.names["good.example"] = [["127.0.0.1"]]
    await _asked(door, "good.example", 1)
    assert b"429" in await _asked(door, "good.example", 1)


async def test_each_has_the_credentials_of_its_own_call_and_no_others(door: LoopbackDoor) -> None:
    target = Target("good.example", 443)
    own, code = OwnConnections(door.door, OWN).request(target), door.door.request(target)
    assert (own.call, own.others) == (OWN, ())
    assert (code.call, code.others) == (CALL, ())  # though an own call is under way
    settings = CredentialSettings.model_validate(
        {"name": "t", "env": "T", "hosts": ["good.example"], "tools": ["tracker/*"], "secret": {"file": Path("/x")}}
    )
    credentials = Credentials([settings])
    assert credentials.placeholder("t", Caller("agent", OWN.tool)) is not None
    assert credentials.placeholder("t", Caller("agent", CALL.tool)) is None
    assert credentials.environment(Caller("agent", CALL.tool)) == {}
