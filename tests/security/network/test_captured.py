"""The audit beside a packet capture: a real gateway, real daemons, and the kernel's word on what was connected to."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path

from airlock.audit import AuditQuery
from gateway.client import Client
from tests.gateway_process import served
from tests.security.network.capture import captured, needs_capture
from tests.security.network.loopback_door import echo_bytes
from tests.security.network.test_sandbox import NO_DOCKER, made, run, serving

SCRIPT = """
def get(host, port, more=""):
    return f"GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n{more}\\r\\n".encode()
CLOSE = "Connection: close\\r\\n"
for _ in range(4):
    s, head = tunnel("localhost", ECHO); s.sendall(b"\\0ping"); s.shutdown(socket.SHUT_WR)
    print(head[9:12].decode(), rest(s))
for _ in range(3):
    print(ask(get("localhost", WEB, CLOSE))[9:12].decode())
print(ask(get("localhost", WEB) + get("localhost", WEB, CLOSE)).count(b"200 OK"))
s = proxy()
s.sendall(b"\\5\\1\\0\\5\\1\\0\\3\\x09localhost" + struct.pack(">H", ECHO)); s.shutdown(socket.SHUT_WR)
print(rest(s)[:4])
print(tunnel("localhost", CLOSED)[1][9:12].decode())
for host in ("no.test", "[::1]", "10.0.0.1", "169.254.169.254", "1.1.1.1"):
    for port in (ECHO, WEB, REFUSED):
        print(tunnel(host, port)[1][9:12].decode(), ask(get(host, port, CLOSE))[9:12].decode())
"""
SAID = [*["200 b'\\x00ping'"] * 4, *["200"] * 3, "2", "b'\\x05\\x00\\x05\\x00'", "502", *["403 403"] * 15]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@needs_capture
async def test_as_many_connections_are_on_record_as_a_packet_capture_saw(tmp_path: Path) -> None:
    home, keys = await asyncio.to_thread(made, tmp_path)
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))  # nothing listens there
    with closed, served(home, NO_DOCKER) as gateway:
        async with (
            serving(echo_bytes) as echo,
            serving(answer) as web,
            serving(echo_bytes) as refused,
            Client(gateway.address, keys["default"]) as client,
            Client(gateway.address, keys["auditor"]) as auditor,
        ):
            names = {"ECHO": echo.port, "WEB": web.port, "REFUSED": refused.port, "CLOSED": closed.getsockname()[1]}
            with captured(list(names.values())) as capture:
                done = await run(client, "".join(f"{name} = {port}\n" for name, port in names.items()) + SCRIPT)
                seen = capture.begun()
                # It would have seen what goes past the policy.
                (await asyncio.open_connection("127.0.0.1", refused.port))[1].close()
                assert capture.begun() == sorted([*seen, refused.port])
            assert done.content.splitlines() == SAID
            records = await auditor.audit(AuditQuery(kinds=("connection",)))
    allowed = sorted(json.loads(one.details)["port"] for one in records if one.verdict == "allow")
    assert allowed == seen == sorted([echo.port] * 5 + [web.port] * 4 + [names["CLOSED"]])
    assert [one.verdict for one in records].count("deny") == len(records) - len(allowed) == 30
