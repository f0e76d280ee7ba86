"""A packet capture of the TCP connections that are begun on this machine, to some ports. Needs root."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

needs_capture = pytest.mark.skipif(os.geteuid() != 0, reason="only root captures packets")
_ETH_P_ALL, _PACKET_OUTGOING = 3, 4
_SO_ATTACH_FILTER = 26
# Opcodes of the kernel's packet filter (linux/bpf_common.h), and where its offsets count from the network header.
_LOAD_BYTE, _LOAD_HALF, _AND, _EQUAL, _RETURN = 0x30, 0x28, 0x54, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000
_SYN, _SYN_ACK = 0x02, 0x12


class Capture:
    """What was captured; nothing is lost as long as the socket's buffer has room for a few hundred first packets."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._begun: set[tuple[int, int, int]] = set()

    def begun(self) -> list[int]:
        """Return the port of each connection that was begun, sorted; a repeated first packet counts once."""
        while True:
            try:
                packet, about = self._listening.recvfrom(100)
            except BlockingIOError:
                return sorted(to for _, to, _ in self._begun)
            if about[2] == _PACKET_OUTGOING:  # on loopback each is seen twice
                self._begun.add(struct.unpack_from("!HHI", packet, 20))


@contextmanager
def captured(ports: Sequence[int]) -> Iterator[Capture]:
    """Capture until the block ends: over IPv4, on every interface, whatever the address."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL)) as listening:
        steps = [
            *_must_be(_LOAD_BYTE, 0, 0x45),  # IPv4 without options
            *_must_be(_LOAD_BYTE, 9, socket.IPPROTO_TCP),
            (_LOAD_BYTE, 0, 0, _NETWORK_HEADER + 33),
            (_AND, 0, 0, _SYN_ACK),
            (_EQUAL, 1, 0, _SYN),
            (_RETURN, 0, 0, 0),
            (_LOAD_HALF, 0, 0, _NETWORK_HEADER + 22),
            *((_EQUAL, len(ports) - number, 0, port) for number, port in enumerate(ports)),
            (_RETURN, 0, 0, 0),
            (_RETURN, 0, 0, 0xFFFF),
        ]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        attached = struct.pack("HP", len(steps), ctypes.addressof(program))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
        listening.setblocking(False)
        with suppress(BlockingIOError):  # what came before there was a filter
            while True:
                listening.recv(1)
        yield Capture(listening)


def _must_be(load: int, offset: int, value: int) -> list[tuple[int, int, int, int]]:
    return [(load, 0, 0, _NETWORK_HEADER + offset), (_EQUAL, 1, 0, value), (_RETURN, 0, 0, 0)]
