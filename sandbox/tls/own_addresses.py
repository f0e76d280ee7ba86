"""Keeps connections from within the relay's own network away from its port.

The containers of a pod share one network, so tool code can address the port. It has no certificate; here it does not
get to show that, and where the kernel allows the filter, not to fill the queue of new connections either.
"""

import array
import contextlib
import socket
import struct

_SO_ATTACH_FILTER = 26
# The program: take a packet's interface; drop it if that is the loopback interface, else keep it. All that a machine
# sends to one of its own addresses arrives there.
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_INTERFACE = 0xFFFFF000 + 8
_INSTRUCTION = struct.Struct("=HBBI")


def drop_own(listener: socket.socket) -> bool:
    """Have the kernel drop what comes to a socket from its own network; return whether it does.

    Call before listen(). connect() from there then gets no answer. gVisor has no filters, and some kernels leave
    them to root: is_own() is for those.
    """
    instructions = (
        (_LOAD_WORD, 0, 0, _INTERFACE),
        (_JUMP_IF_EQUAL, 0, 1, socket.if_nametoindex("lo")),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, 0xFFFFFFFF),
    )
    program = array.array("B", b"".join(_INSTRUCTION.pack(*one) for one in instructions))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(instructions), program.buffer_info()[0])
        )
    except OSError:
        return False
    return True


def is_own(address: str) -> bool:
    """Return whether an address, as accept() returns it, is one of this network's own: a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as tried:
        tried.bind((address, 0))
        return True
    return False
