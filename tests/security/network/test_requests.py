"""Plain HTTP by the proxy, end to end: what is judged is what the server gets, request by request."""

from __future__ import annotations

import asyncio

import pytest

from tests.security.network.loopback_door import LoopbackDoor, allow, body, closed, get, policy, status
from tests.unit.gateway.network.relayed import OK, answer, echo, head, saying

DENY = {"tools": ["connect"], "effect": "deny"}


async def test_the_name_of_a_wildcard_is_what_is_below_and_nothing_like_it(door: LoopbackDoor) -> None:
    names = ["a.name.test", "a.b.name.test", "name.test", "evilname.test", "a.name.test.evil.test", "name.test.evil"]
    server = await door.serve(saying(OK), *names)
    door.policy = policy(allow("*.name.test"))
    said = [status(await door.ask(get(name, server.port))) for name in names]
    assert said == [200, 200, 403, 403, 403, 403]
    assert server.connections == 2


async def test_a_deny_holds_whatever_allows_and_in_whatever_order(door: LoopbackDoor) -> None:
    server = await door.serve(saying(OK), "a.name.test", "b.name.test")
    no = DENY | {"hosts": ["a.name.test"]}
    for rules in ((no, allow("*.name.test"), allow("a.name.test")), (allow(), no), (allow("*.name.test"), no)):
        door.policy = policy(*rules)
        assert status(await door.ask(get("a.name.test", server.port))) == 403
        assert status(await door.ask(get("b.name.test", server.port))) == 200
    door.policy = policy(allow("*.name.test"), operator=[{"tools": ["connect"], "hosts": ["127.0.0.0/8"]}, no])
    assert body(await door.ask(get("a.name.test", server.port)))["rule"] == "operator/r1"


async def test_a_rule_is_for_its_port(door: LoopbackDoor) -> None:
    named, other = await door.serve(saying(OK), "a.test"), await door.serve(saying(OK))
    door.policy = policy(allow(f"a.test:{named.port}"))
    assert status(await door.ask(get("a.test", other.port))) == 403
    assert status(await door.ask(get("a.test", named.port))) == 200
    split = f"GET http://a.test:{named.port}/ HTTP/1.1\r\nHost: a.test:{other.port}\r\nConnection: close\r\n\r\n"
    assert status(await door.ask(split.encode())) == 400
    assert other.connections == 0


PATHS = [
    "/private/x",
    "/public/../private/x",
    "/public/%2e%2e/private/x",
    "/public/.%2E/private/x",
    "/public/..%2Fprivate/x",
    "/public/%2e%2e%2fprivate/x",
    "/public/..%5cprivate/x",
    "/public/%252e%252e/private/x",
    "/public/..;/private/x",
    "/public/..;a=b/private/x",
    "/public/./../private/x",
    "/public//../../private/x",
    "/%70rivate/x",
    "//private/x",
    "/public%2F..%2Fprivate",
    "/public\\..\\private",
    "/public/%00",
    "/public/%zz",
    "/PUBLIC/x",
    "/publicx",
    "/",
    "",
    "?/public/x",
]


@pytest.mark.parametrize("path", PATHS)
async def test_no_way_to_write_a_path_leads_out_of_the_allowed_one(door: LoopbackDoor, path: str) -> None:
    server = await door.serve(echo, "a.test")
    door.policy = policy(allow("a.test", methods=["GET"], url_paths=["/public/**"]))
    assert status(await door.ask(get("a.test", server.port, path))) in (400, 403)
    assert server.connections == 0
    for good in ("/public/x", "/public/%78", "/public/y/../x", "/private/../public/x"):
        assert b"GET /public/x HTTP/1.1" in await door.ask(get("a.test", server.port, good))


@pytest.mark.parametrize(
    "method", ["POST", "DELETE", "PUT", "get", "Get", "G", "X-GET", "CONNECTX", "OPTIONS", "TRACE"]
)
async def test_a_rule_for_methods_allows_no_other(door: LoopbackDoor, method: str) -> None:
    server = await door.serve(echo, "a.test")
    door.policy = policy(allow("a.test", methods=["GET"]))
    answered = await door.ask(get("a.test", server.port, method=method))
    if (
        method.upper() == "GET"
    ):  # judged as GET: then it must arrive as it was sent, which is another method to a server
        assert status(answered) in (200, 403)
    else:
        assert status(answered) in (403, 501)
        assert server.connections == 0
    for override in ("X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE"):  # no business of a proxy's
        assert b"GET / HTTP/1.1" in await door.ask(get("a.test", server.port, "/", override))


async def test_rules_on_requests_let_no_raw_tunnel_pass(door: LoopbackDoor) -> None:
    server = await door.serve(echo, "a.test")
    for rules in ([allow("a.test", methods=["GET"])], [allow("a.test"), DENY | {"url_paths": ["/private/**"]}]):
        door.policy = policy(*rules)
        before = server.connections
        for spoken in (b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"):
            reader, writer = await door.tunnel("a.test", server.port)  # its TLS would be opened
            writer.write(spoken)
            assert await closed(reader) == b""
        assert server.connections == before
        assert status(await door.ask(get("a.test", server.port, "/public"))) == 200


async def test_every_pipelined_request_is_judged_by_itself(door: LoopbackDoor) -> None:
    allowed, denied = await door.serve(echo, "a.test"), await door.serve(echo, "b.test")
    door.policy = policy(allow("a.test"))
    requests = [
        f"GET http://{host}:{port}/{number} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        for number, (host, port) in enumerate([("a.test", allowed.port), ("b.test", denied.port)] * 2)
    ]
    reader, writer = await door.connect()
    writer.write("".join(requests).encode())
    answers = [await answer(reader) for _ in requests]
    assert [status(start) for start, _ in answers] == [200, 403, 200, 403]
    assert [b"/0" in answers[0][1], b"/2" in answers[2][1]] == [True, True]
    assert denied.connections == 0


async def test_a_second_request_in_a_tunnel_is_for_its_host_too(door: LoopbackDoor) -> None:
    server = await door.serve(echo, "a.test", "b.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.tunnel("a.test", server.port)
    lines = [f"GET /{host} HTTP/1.1\r\nHost: {host}:{server.port}\r\n\r\n" for host in ("a.test", "b.test")]
    writer.write("".join(lines).encode())
    first, second = await answer(reader), await answer(reader)
    assert (status(first[0]), status(second[0])) == (200, 400)
    assert b"b.test" not in first[1]


SMUGGLED = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
    "Content-Length: 0\r\nContent-Length: 40\r\n\r\n{}",
    "Content-Length: 0, 40\r\n\r\n{}",
    "Content-Length: +0\r\n\r\n{}",
    "Content-Length: 0x0\r\n\r\n{}",
    "Content-Length: 00000000000000000000\r\n\r\n{}",
    "Content-Length : 0\r\n\r\n{}",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{}",
    "Transfer-Encoding: identity\r\n\r\n{}",
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{}",
    "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{}",
    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{}",
    "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{}",
    "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
    "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
    "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
    "X: y\r\n\tfolded\r\n\r\n{}",
    "Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{}",
    "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{}",
    "Transfer-Encoding: chunked\r\n\r\n1\n0\n0\r\n\r\n{}",
    "Connection: close, Host\r\n\r\n{}",
    "Host: b.test\r\n\r\n{}",
]


@pytest.mark.parametrize("lines", SMUGGLED)
async def test_no_request_is_smuggled_behind_another(door: LoopbackDoor, lines: str) -> None:
    server = await door.serve(echo, "a.test")
    door.policy = policy(allow("a.test", methods=["POST", "GET"], url_paths=["/open"]))
    start = f"POST http://a.test:{server.port}/open HTTP/1.1\r\nHost: a.test:{server.port}\r\n"
    hidden = f"GET /hidden HTTP/1.1\r\nHost: a.test:{server.port}\r\n\r\n"
    said = await door.ask((start + lines.format(hidden)).encode("latin-1"))
    assert b"/hidden" not in said
    assert status(said) >= 400
    assert status(await door.ask(get("a.test", server.port, "/open"))) == 200


async def test_a_body_of_one_request_is_not_the_next_one(door: LoopbackDoor) -> None:
    """The control of the above: lengths and chunks that are plainly written are kept."""

    async def bodies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            start = await head(reader)
            if b"chunked" in start.lower():
                got = b""
                while size := int(await reader.readline(), 16):
                    got += (await reader.readexactly(size + 2))[:-2]
                while await reader.readline() != b"\r\n":
                    pass
            else:
                got = await reader.readexactly(int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(got), got)
            )

    server = await door.serve(bodies, "a.test")
    door.policy = policy(allow("a.test"))
    hidden = b"GET http://b.test/ HTTP/1.1\r\n\r\n"
    start = b"POST http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n" % (server.port, server.port)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in hidden)
    reader, writer = await door.connect()
    writer.write(start + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden)
    writer.write(start + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks + b"0\r\nX-Sum: 1\r\n\r\n")
    said = await closed(reader)
    assert said.count(hidden) == 2
    assert (server.connections, said.count(b"HTTP/1.1 200")) == (1, 2)


async def test_where_an_answer_sends_the_client_is_judged_anew(door: LoopbackDoor) -> None:
    denied = await door.serve(saying(OK), "b.test")
    there = f"http://b.test:{denied.port}/"
    moved = f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()
    server = await door.serve(saying(moved), "a.test")
    door.policy = policy(allow("a.test"))
    said = await door.ask(get("a.test", server.port))
    assert (status(said), there.encode() in said) == (302, True)
    assert status(await door.ask(get("b.test", denied.port))) == 403
    assert denied.connections == 0


async def test_a_websocket_and_its_bytes_pass_and_another_upgrade_does_not(door: LoopbackDoor) -> None:
    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
        while data := await reader.read(1000):
            writer.write(data)

    server = await door.serve(switch, "a.test")
    door.policy = policy(allow("a.test"))
    asked = b"GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"
    reader, writer = await door.connect()
    writer.write(asked % (server.port, server.port, b"websocket"))
    assert status(await head(reader)) == 101
    assert await reader.readexactly(5) == b"hello"
    writer.write(b"GET http://b.test/ HTTP/1.1\r\n\r\n")  # bytes of the WebSocket, to its own server
    assert await reader.readexactly(30) == b"GET http://b.test/ HTTP/1.1\r\n\r\n"[:30]
    writer.close()
    for other in (b"h2c", b"TLS/1.0", b"websocket, h2c"):
        assert status(await door.ask(asked % (server.port, server.port, other))) == 501
    assert server.connections == 1


async def test_100_continue_comes_from_the_server_after_the_request_is_judged(door: LoopbackDoor) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(3)
        writer.write(OK)

    server = await door.serve(handle, "a.test", "b.test")
    door.policy = policy(allow("a.test"))
    for host, expected in (("a.test", b"100"), ("b.test", b"403")):
        reader, writer = await door.connect()
        lines = f"POST http://{host}:{server.port}/ HTTP/1.1\r\nHost: {host}:{server.port}\r\nContent-Length: 3\r\n"
        writer.write(lines.encode() + b"Expect: 100-continue\r\n\r\n")
        assert (await head(reader)).split()[1] == expected
        if expected == b"100":
            writer.write(b"abc")
            assert (await answer(reader))[1] == b"ok"
        writer.close()
    assert server.connections == 1


async def test_many_requests_on_one_connection_count_as_one(door: LoopbackDoor) -> None:
    server = await door.serve(echo, "a.test")
    door.policy = policy(allow("a.test"), connections=1, connections_per_minute=2)
    request = f"GET http://a.test:{server.port}/ HTTP/1.1\r\nHost: a.test:{server.port}\r\n\r\n".encode()
    reader, writer = await door.connect()
    for _ in range(10):
        writer.write(request)
        assert status((await answer(reader))[0]) == 200
    writer.close()
    assert await door.recorded(1) == [("allow", "r0", "completed")]
    reader, writer = await door.tunnel("a.test", server.port)
    for _ in range(3):
        writer.write(f"GET / HTTP/1.1\r\nHost: a.test:{server.port}\r\n\r\n".encode())
        assert status((await answer(reader))[0]) == 200
    writer.close()
    assert await door.recorded(2) == [("allow", "r0", "completed")] * 2
    assert status(await door.ask(get("a.test", server.port))) == 429


async def test_the_bytes_on_record_are_those_that_the_server_counted(door: LoopbackDoor) -> None:
    counted = [0, 0]

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            start = await reader.readuntil(b"\r\n\r\n")
            given = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000)
            counted[0] += len(start)
            counted[1] += len(given)
            writer.write(given)

    server = await door.serve(count, "a.test")
    door.policy = policy(allow("a.test"))
    reader, writer = await door.connect()
    for _ in range(5):
        writer.write(f"GET http://a.test:{server.port}/ HTTP/1.1\r\nHost: a.test:{server.port}\r\n\r\n".encode())
        await answer(reader)
    writer.close()
    await door.recorded(1)
    details = door.records[0].details
    assert [details["bytes_up"], details["bytes_down"]] == counted
    assert (details["method"], details["host"], details["port"]) == ("GET", "a.test", server.port)
