"""A name server over UDP on a loopback address of its own, which answers as a test says. Port 53 needs root."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

_A = 1
_NO_SUCH_NAME = 3
_ANSWERED = 0x8180  # recursion was asked for and is available


class NameServer(asyncio.DatagramProtocol):
    """`names`: the addresses of each look-up of a name, the last ones for good; () for no answer at all.

    `asked` are the names that were asked for, once for each look-up.
    """

    def __init__(self) -> None:
        self.names: dict[str, list[tuple[str, ...]]] = {}
        self.asked: list[str] = []
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(0, 12) + 5
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        name, kind = ".".join(labels).lower(), int.from_bytes(data[end - 4 : end - 2])
        answers = self.names.get(name)
        addresses: tuple[str, ...] = ()
        if kind == _A:  # glibc asks for AAAA at the same time: there are none
            self.asked.append(name)
            if answers is not None:
                addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        if answers == [()]:
            return
        flags = _ANSWERED | (_NO_SUCH_NAME if answers is None else 0)
        head = b"".join(part.to_bytes(2) for part in (flags, 1, len(addresses), 0, 0))
        # The name again, by a pointer to the question; kind, class, a time to live of none, and the address.
        records = (
            bytes.fromhex("c00c 0001 0001 00000000 0004") + ipaddress.ip_address(one).packed for one in addresses
        )
        self._transport.sendto(data[:2] + head + data[12:end] + b"".join(records), addr)


@asynccontextmanager
async def name_server(directory: Path) -> AsyncIterator[tuple[NameServer, Mapping[str, Path]]]:
    """Serve names until the block ends; yield the server, and the files by which a process asks it and no other."""
    address = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(255)}.53"
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, (address, 53))
    files = {
        "/etc/resolv.conf": f"nameserver {address}\noptions timeout:20 attempts:1\n",
        "/etc/nsswitch.conf": "hosts: files dns\n",
    }
    for path, content in files.items():
        (directory / Path(path).name).write_text(content, encoding="ascii")
    try:
        yield server, {path: directory / Path(path).name for path in files}
    finally:
        transport.close()
