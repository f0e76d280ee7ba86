"""What init and the server say to each other over a SOCK_SEQPACKET pair.

Server to init: (kind, call, value) and, with it, descriptors or numbers.
    SPAWN       stdout, stderr and perhaps stdin
    SPAWN_TTY   a terminal that becomes the program's controlling one
    PROBE       the writing end of a pipe
    KILL        end everything the call started
    SIGNAL      send signal `value` to the process group of the call's first process
    SIGNAL_TREE send signal `value` once to everything the call started
    KILL_STRAYS end what calls started, but for the calls whose numbers follow
    HOLD        stop everything that calls started and that is not stopped
    RELEASE     have what HOLD stopped go on
Init to server: (kind, call, value, pid). STARTED or FAILED answers the first three. DONE answers the others, in their
order: its value is how many processes are left or were signalled, or a negative errno. EXITED comes unasked.

The program of SPAWN and SPAWN_TTY follows in the order, or, past PROGRAM_LIMIT_BYTES, is in a memory file that is the
first descriptor. It is NUL-separated, which is safe because neither arguments nor environment can hold NUL:
cwd, number of arguments, the arguments, the environment as NAME=value.
"""

import struct

SPAWN, KILL, PROBE, SPAWN_TTY, SIGNAL, SIGNAL_TREE, KILL_STRAYS, HOLD, RELEASE = 1, 2, 3, 4, 5, 6, 7, 8, 9
STARTED, FAILED, EXITED, DONE = 11, 12, 13, 14

ORDER = struct.Struct("!BIB")
NOTICE = struct.Struct("!BIiI")
_NUMBER = struct.Struct("!I")

# Calls that live at the same time: one for each connection, the background processes, and some to spare.
LIVE_CALLS_LIMIT = 4096
ORDER_LIMIT_BYTES = ORDER.size + LIVE_CALLS_LIMIT * _NUMBER.size

# Of a program that follows in its order: a queue of orders must have room for many.
PROGRAM_LIMIT_BYTES = 4096

# A call's processes carry one supplementary group that no other call has: this base plus the call's number.
CALL_GID_BASE = 1 << 30
CALL_NUMBERS = 1 << 30


def call_gid(call: int) -> int:
    """Return the supplementary group id that marks the processes of a call."""
    return CALL_GID_BASE + call % CALL_NUMBERS


def call_of_gid(gid: int) -> int:
    """Return the call that a group id marks, 0 for one that marks none."""
    return gid - CALL_GID_BASE if CALL_GID_BASE < gid < CALL_GID_BASE + CALL_NUMBERS else 0


def encode_calls(calls: list[int]) -> bytes:
    """Return the numbers that follow KILL_STRAYS. ValueError when there are too many for one order."""
    if len(calls) > LIVE_CALLS_LIMIT:
        raise ValueError(f"{len(calls)} calls are live; {LIVE_CALLS_LIMIT} fit one order")
    return b"".join(map(_NUMBER.pack, calls))


def decode_calls(data: bytes) -> frozenset[int]:
    """Return the calls of encode_calls()."""
    return frozenset(call for (call,) in _NUMBER.iter_unpack(data))


def encode_program(argv: list[bytes], env: list[bytes], cwd: bytes) -> bytes:
    """Return the bytes of a program; no member may hold NUL."""
    return b"\0".join([cwd, b"%d" % len(argv), *argv, *env])


def decode_program(data: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """Return (argv, env, cwd)."""
    cwd, count, *rest = data.split(b"\0")
    return rest[: int(count)], rest[int(count) :], cwd
