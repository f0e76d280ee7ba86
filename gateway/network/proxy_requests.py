"""What a client asks a proxy for: CONNECT of HTTP, and SOCKS5 (RFC 1928) without a password."""

import ipaddress
import re
import struct

from gateway.network.client_bytes import ClientBytes, EndOfConnection
from gateway.network.decision import Target
from gateway.network.http_request import Refused, bad
from gateway.support.hosts import canonical_host

SOCKS_VERSION = 5
_HEAD_LIMIT_BYTES = 64 * 1024
_CONNECT = re.compile(rb"CONNECT (\[[0-9A-Fa-f:.]+\]|[^\s\[\]:@/?#\\%]+):([0-9]{1,5}) HTTP/1\.[01]\r\n", re.IGNORECASE)
_NO_PASSWORD, _NO_METHOD = 0, 0xFF
_SOCKS_CONNECT = 1
_SUCCEEDED, _NOT_ALLOWED, _UNREACHABLE, _NO_SUCH_COMMAND, _NO_SUCH_ADDRESS = 0, 2, 4, 7, 8
_REASONS = {403: "Forbidden", 429: "Too Many Requests", 502: "Bad Gateway", 504: "Gateway Timeout"}


async def read_connect(client: ClientBytes) -> Target:
    """Read a CONNECT request up to the end of its head. Raises Refused."""
    try:
        head = await client.until(b"\r\n\r\n", _HEAD_LIMIT_BYTES)
    except ValueError as error:
        raise bad(f"the head of the request has {error}", 431) from error
    found = _CONNECT.match(head)
    if found is None:
        raise bad("CONNECT is asked for as CONNECT host:port HTTP/1.1")
    return _target_of(found[1], int(found[2]))


def _target_of(host: bytes, port: int) -> Target:
    """Return a target in the one spelling that is judged. Raises Refused."""
    if not 0 < port < 65_536:
        raise bad(f"{port} is not a port")
    try:
        return Target(canonical_host(host.decode()), port)
    except UnicodeDecodeError as error:
        raise bad("the host is not in UTF-8") from error
    except ValueError as error:
        raise bad(f"{host.decode()[:100]!r} is not a host: {error}") from error


CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
"""The answer to a CONNECT that is allowed."""


def http_refusal(refused: Refused) -> bytes:
    """Return the whole answer to an HTTP request that is refused; the connection is closed after it."""
    body = refused.content
    reason = _REASONS.get(refused.status, "Refused")
    head = (
        f"HTTP/1.1 {refused.status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def read_socks(client: ClientBytes) -> Target:
    """Read a SOCKS5 handshake and request. Raises Refused, which socks_refusal() turns into an answer.

    EndOfConnection too, if the client wants to log in.
    """
    _, count = await client.exactly(2)
    methods = await client.exactly(count)
    if _NO_PASSWORD not in methods:
        await client.send(bytes([SOCKS_VERSION, _NO_METHOD]))
        raise EndOfConnection
    await client.send(bytes([SOCKS_VERSION, _NO_PASSWORD]))
    version, command, _, kind = await client.exactly(4)
    if version != SOCKS_VERSION:
        raise bad(f"SOCKS version {version} is not spoken here")
    if kind == 1:
        host = str(ipaddress.IPv4Address(await client.exactly(4))).encode()
    elif kind == 3:
        (size,) = await client.exactly(1)
        host = await client.exactly(size)
    elif kind == 4:
        host = f"[{ipaddress.IPv6Address(await client.exactly(16))}]".encode()
    else:
        raise bad(f"SOCKS has no address of kind {kind}", _NO_SUCH_ADDRESS)
    (port,) = struct.unpack(">H", await client.exactly(2))
    if command != _SOCKS_CONNECT:
        raise bad("SOCKS connects over TCP here, nothing else: there is no UDP", _NO_SUCH_COMMAND)
    return _target_of(host, port)


SOCKS_CONNECTED = bytes([SOCKS_VERSION, _SUCCEEDED, 0, 1, 0, 0, 0, 0, 0, 0])


def socks_refusal(refused: Refused) -> bytes:
    """Return the answer to a SOCKS request that is refused."""
    code = {403: _NOT_ALLOWED, 502: _UNREACHABLE, 504: _UNREACHABLE}.get(refused.status)
    if code is None:
        code = refused.status if refused.status in (_NO_SUCH_COMMAND, _NO_SUCH_ADDRESS) else 1
    return bytes([SOCKS_VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])
