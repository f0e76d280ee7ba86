"""One host in all its spellings, and special addresses: as literals, behind names, behind a name that moves."""

from __future__ import annotations

import pytest

from tests.security.network.loopback_door import (
    LOOPBACK,
    LoopbackDoor,
    allow,
    body,
    connect,
    get,
    policy,
    socks,
    status,
)
from tests.unit.gateway.network.relayed import OK, saying

EVERY_HOST = allow()
DENIED = {"tools": ["connect"], "effect": "deny"}
WAYS = {"connect": connect, "absolute form": get, "SOCKS": socks}

NAMES = [
    "BLOCKED.TEST",
    "Blocked.Test.",
    "blocked.test..",
    ".blocked.test",
    "blocked%2Etest",
    "blocked.test%00.allowed.test",
    "allowed.test@blocked.test",
    "allowed.test:80@blocked.test",
    "blocked.test\x00.allowed.test",
    "allowed.test\x00blocked.test",
    "blocked.test\n",
    "blocked.test\t",
    " blocked.test",
    "blocked.test#.allowed.test",
    "blocked.test?.allowed.test",
    "blocked.test/.allowed.test",
    "blocked.test\\.allowed.test",
    "blocked.test,allowed.test",
    "[blocked.test]",
    "blocked\u3002test",
    "\uff42locked.test",
    "b\u00adlocked.test",
    "blocked.test\u200b",
    "\u24d1locked.test",
]
"""What somebody, somewhere takes for blocked.test."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("host", NAMES)
async def test_no_spelling_of_a_denied_name_passes(door: LoopbackDoor, host: str, way: str) -> None:
    server = await door.serve(saying(OK), "allowed.test", "blocked.test", host)
    door.policy = policy(EVERY_HOST, DENIED | {"hosts": ["blocked.test"]})
    answer = await door.ask(WAYS[way](host, server.port))
    if way == "SOCKS":
        assert answer[:2] == b"\x05\x00"
        assert answer[2:4] in (b"\x05\x01", b"\x05\x02")
    else:
        assert status(answer) in (400, 403)
    assert (server.connections, door.lookups) == (0, [])
    assert (await door.ask(get("Allowed.Test.", server.port))).startswith(b"HTTP/1.1 200")  # the control


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("host", ["a" * 64 + ".test", "a." * 125 + "test", "x" * 255, ".", "-.test", "*.test"])
async def test_what_is_no_name_is_not_looked_up(door: LoopbackDoor, host: str, way: str) -> None:
    door.policy = policy(EVERY_HOST)
    answer = await door.ask(WAYS[way](host, 80))
    assert answer.startswith(b"\x05\x00\x05\x01") if way == "SOCKS" else status(answer) == 400
    assert door.lookups == []
    longest = ".".join(["a" * 63] * 3)
    server = await door.serve(saying(OK), longest)
    assert status(await door.ask(get(longest, server.port))) == 200


SPECIAL = [
    *(
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "0x7f.1",
        "0x7F000001",
        "2130706433",
        "017700000001",
        "127.0.0.1.",
    ),
    *("0.0.0.0", "0", "0x0", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::127.0.0.1]", "[2002:7f00:1::]", "[::127.0.0.1]"),
    *("[2001:0:7f00:1::]", "10.0.0.1", "012.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.257"),
    *("100.64.0.1", "100.127.255.255", "169.254.169.254", "0xa9fea9fe", "2852039166", "[::ffff:a9fe:a9fe]"),
    *("169.254.170.2", "168.63.129.16", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[fc00::1]"),
    *("192.0.0.192", "198.18.0.1", "192.0.2.1", "224.0.0.1", "239.255.255.250", "[ff02::1]", "255.255.255.255"),
    *("240.0.0.1", "[2001:db8::1]", "[100::1]", "[5f00::1]", "[4000::1]"),
]


@pytest.mark.parametrize("host", SPECIAL)
async def test_no_special_address_is_dialled_in_any_spelling_whatever_the_tenant_allows(
    door: LoopbackDoor, host: str
) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    door.policy = policy(EVERY_HOST, operator=[])
    for way in ("connect", "absolute form"):
        said = body(await door.ask(WAYS[way](host, server.port)))
        assert said["error"] == "policy_denied"
        assert "which no rule of the operator names" in said["reason"]
    assert (await door.ask(socks(host, server.port)))[2:4] == b"\x05\x02"
    assert server.connections == 0
    door.policy = policy(EVERY_HOST)
    assert status(await door.ask(get("0x7f.1", server.port))) == 200  # the control: the operator names it


@pytest.mark.parametrize(
    "host", ["[fe80::1%eth0]", "[::1%lo]", "[::1%25lo]", "fe80::1%1", "[::1", "::1]", "1.2.3.4.5", "256.1.1.1"]
)
async def test_zones_and_broken_addresses_are_no_host(door: LoopbackDoor, host: str) -> None:
    server = await door.serve(saying(OK))
    door.policy = policy(EVERY_HOST)
    for way, asked in WAYS.items():
        answer = await door.ask(asked(host, server.port))
        assert answer[2:4] == b"\x05\x01" if way == "SOCKS" else status(answer) == 400
    assert server.connections == 0
    assert status(await door.ask(get("127.0.0.1", server.port))) == 200


SOCKS_ADDRESSES = [
    b"\x01" + bytes([127, 0, 0, 1]),
    b"\x01" + bytes(4),
    b"\x04" + bytes(15) + b"\x01",
    b"\x04" + bytes(10) + b"\xff\xff\x7f\x00\x00\x01",
    b"\x04" + bytes.fromhex("0064ff9b00000000000000007f000001"),
]


@pytest.mark.parametrize("address", SOCKS_ADDRESSES)
async def test_socks_addresses_are_judged_as_those_of_http(door: LoopbackDoor, address: bytes) -> None:
    server = await door.serve(saying(OK))
    request = b"\x05\x01\x00\x05\x01\x00" + address + server.port.to_bytes(2, "big")
    door.policy = policy(EVERY_HOST, operator=[])
    assert (await door.ask(request))[2:4] == b"\x05\x02"
    assert server.connections == 0
    door.policy = policy(EVERY_HOST)
    reader, writer = await door.connect()
    writer.write(b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01" + server.port.to_bytes(2, "big"))
    assert (await reader.readexactly(12))[2:4] == b"\x05\x00"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "64:ff9b::7f00:1", "0.0.0.0"],
)
async def test_a_name_leads_to_no_special_address(door: LoopbackDoor, address: str) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    door.names["rebound.test"] = [[address]]
    door.policy = policy(allow("allowed.test", "rebound.test"), operator=[])
    said = body(await door.ask(connect("rebound.test", server.port)))
    assert (said["error"], said["host"]) == ("policy_denied", "rebound.test")
    assert "the operator's layer" in said["how_to_allow"]
    assert server.connections == 0
    door.policy = policy(allow("allowed.test"))
    assert status(await door.ask(get("allowed.test", server.port))) == 200


async def test_a_name_that_moves_is_looked_up_once_and_dialled_there(door: LoopbackDoor) -> None:
    """Rebinding: what was checked is what is dialled, and the next connection is checked anew."""
    server = await door.serve(saying(OK), "moving.test")
    door.names["moving.test"] = [["127.0.0.1"], ["10.0.0.1"], ["127.0.0.1"]]
    door.policy = policy(allow("moving.test"))
    assert status(await door.ask(get("moving.test", server.port))) == 200
    assert door.lookups == ["moving.test"]
    assert status(await door.ask(get("moving.test", server.port))) == 403
    assert status(await door.ask(get("moving.test", server.port))) == 200
    assert len(door.lookups) == 3


async def test_of_several_addresses_only_those_that_may_be_dialled_are_tried(door: LoopbackDoor) -> None:
    server = await door.serve(saying(OK), "many.test")
    door.names["many.test"] = [["169.254.169.254", "10.0.0.1", "127.0.0.1"]]
    door.policy = policy(allow("many.test"), connect_s=3)
    assert status(await door.ask(get("many.test", server.port))) == 200
    await door.recorded(1)
    assert door.records[0].details["address"] == "127.0.0.1"
    door.names["many.test"] = [["169.254.169.254", "10.0.0.1"]]
    assert status(await door.ask(get("many.test", server.port))) == 403


async def test_a_name_that_does_not_resolve_or_refuses_is_a_502_that_says_so(door: LoopbackDoor) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    door.policy = policy(allow("allowed.test", "nowhere.test"))
    assert body(await door.ask(connect("nowhere.test", 80)))["error"] == "unresolved"
    answer = await door.ask(connect("allowed.test", 1))
    assert (status(answer), body(answer)["error"], body(answer)["port"]) == (502, "unreachable", 1)
    assert (await door.ask(socks("nowhere.test", 80)))[2:4] == b"\x05\x04"
    assert status(await door.ask(get("allowed.test", server.port))) == 200
    assert [one[0] for one in await door.recorded(4)] == ["allow"] * 4


async def test_another_tenant_s_operator_rule_for_a_port_names_no_other_port(door: LoopbackDoor) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    other = await door.serve(saying(OK))
    door.policy = policy(EVERY_HOST, operator=[LOOPBACK | {"hosts": [f"127.0.0.1:{server.port}"]}])
    assert status(await door.ask(get("127.0.0.1", server.port))) == 200
    for host in ("127.0.0.1", "127.0.0.2", "allowed.test"):
        assert status(await door.ask(get(host, other.port))) == 403
    assert other.connections == 0


@pytest.mark.parametrize(
    "operator",
    [
        [LOOPBACK | {"when": 'tenant != "acme"'}],
        [LOOPBACK, DENIED | {"hosts": ["127.0.0.1"], "when": 'tenant == "acme"'}],
    ],
    ids=["allowed to others", "denied to this one"],
)
async def test_an_address_behind_a_name_is_named_for_those_tenants_that_the_operator_says(
    door: LoopbackDoor, operator: list[dict[str, object]]
) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    door.policy = policy(EVERY_HOST, operator=[LOOPBACK | {"when": 'tenant == "acme"'}])
    assert status(await door.ask(get("allowed.test", server.port))) == 200
    door.policy = policy(EVERY_HOST, operator=[*operator, allow("allowed.test")])
    assert status(await door.ask(get("allowed.test", server.port))) == 403
    assert server.connections == 1


CDN = "93.184.216.34"
NETWORK = DENIED | {"hosts": ["93.184.216.0/24"]}


@pytest.mark.parametrize("layer", ["tenant", "operator"])
async def test_a_name_leads_to_no_public_address_that_a_rule_denies(door: LoopbackDoor, layer: str) -> None:
    server = await door.serve(saying(OK), "allowed.test")
    door.names["cdn.test"] = [[CDN]]
    door.names["both.test"] = [[CDN, "127.0.0.1"]]
    rules, above = [EVERY_HOST], [LOOPBACK]
    (rules if layer == "tenant" else above).append(NETWORK)
    door.policy = policy(*rules, operator=above)
    for way in ("connect", "absolute form"):
        said = body(await door.ask(WAYS[way]("cdn.test", server.port)))
        assert (said["error"], said["host"], said["rule"].endswith("r1")) == ("policy_denied", "cdn.test", True)
        assert CDN in said["reason"]
    assert (await door.ask(socks("cdn.test", server.port)))[2:4] == b"\x05\x02"
    assert [one[:2] for one in await door.recorded(3)] == [("deny", said["rule"])] * 3
    for host in ("allowed.test", "both.test"):
        assert status(await door.ask(get(host, server.port))) == 200
    await door.recorded(5)
    assert [one.details["address"] for one in door.records[3:]] == ["127.0.0.1"] * 2
